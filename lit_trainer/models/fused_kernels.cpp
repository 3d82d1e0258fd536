// Keyed dropout, alone and fused with the softmax of attention, for float32 and bfloat16 on a CPU.
//
// fused_kernels.py compiles this file once with the machine's own compiler and says in plain torch what each function
// computes. Every array is contiguous: scores and gradients [rows, heads, queries, width], tokens [rows, queries],
// features [heads, feature_stride] of which the first `width` columns count, mask [rows or 1, queries, width].

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct bfloat16 {
  uint16_t bits;
};

inline float load(float x) { return x; }

inline float load(bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline void store(float& target, float x) { target = x; }

inline void store(bfloat16& target, float x) {  // to the nearest, ties to even, as torch does
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  target.bits = static_cast<uint16_t>(x != x ? 0x7FC0u : rounded);
}

// exp(x) for x <= 0 or NaN, to 2e-7: a function that compilers turn into vector code. Cephes' polynomial on
// [-ln2 / 2, ln2 / 2]; adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  float n = x * 1.44269504f + 12582912.0f;
  uint32_t bits;
  std::memcpy(&bits, &n, 4);
  n -= 12582912.0f;
  const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  bits = (bits << 23) + 0x3F800000u;
  float power;
  std::memcpy(&power, &bits, 4);
  return y * power;
}

struct Shape {
  int64_t rows, heads, queries, width;
};

struct Dropout {
  const int32_t* tokens;  // null: no dropout
  const int32_t* features;
  int64_t feature_stride;
  int32_t threshold;
  float scale;
};

// What each element of one line is multiplied by: 0 or the scale.
struct Line {
  uint32_t token;
  const int32_t* features;
  int32_t threshold;
  float scale;
  Line(const Dropout& d, int64_t token_index, int64_t head)
      : token(d.tokens ? static_cast<uint32_t>(d.tokens[token_index]) : 0),
        features(d.features + head * d.feature_stride), threshold(d.threshold), scale(d.scale) {}
  inline float factor(int64_t j) const {
    return static_cast<int32_t>(token * static_cast<uint32_t>(features[j])) < threshold ? 0.0f : scale;
  }
};

// Calls body(line, row, head, query, scratch) for every line of `width` elements, on several threads.
template <class Body>
void for_each_line(const Shape& shape, int64_t scratch_lines, int threads, const Body& body) {
  const int64_t lines = shape.rows * shape.heads * shape.queries;
#pragma omp parallel num_threads(threads) if (threads > 1 && lines * shape.width > 16384)
  {
    std::vector<float> scratch(scratch_lines * shape.width);
#pragma omp for
    for (int64_t line = 0; line < lines; ++line) {
      const int64_t query = line % shape.queries, matrix = line / shape.queries;
      body(line, matrix / shape.heads, matrix % shape.heads, query, scratch.data());
    }
  }
}

template <class T>
void dropout(const T* in, T* out, const Shape& shape, const Dropout& drop, int threads) {
  for_each_line(shape, 0, threads, [&](int64_t line, int64_t row, int64_t head, int64_t query, float*) {
    const Line keep(drop, row * shape.queries + query, head);
    const T* x = in + line * shape.width;
    T* y = out + line * shape.width;
#pragma omp simd
    for (int64_t j = 0; j < shape.width; ++j) store(y[j], load(x[j]) * keep.factor(j));
  });
}

// scores become dropout(softmax(alpha * scores)); lse gets log(sum(exp(alpha * scores))).
template <class T, bool drops>
void softmax(T* scores, float* lse, const Shape& shape, float alpha, const uint8_t* mask, int64_t mask_stride,
             const Dropout& drop, int threads) {
  const int64_t width = shape.width;
  for_each_line(shape, 1, threads, [&](int64_t line, int64_t row, int64_t head, int64_t query, float* e) {
    T* s = scores + line * width;
    float top = -INFINITY, sum = 0.0f;
    if (mask) {
      const uint8_t* open = mask + row * mask_stride + query * width;
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) e[j] = open[j] ? load(s[j]) * alpha : -INFINITY;
    } else {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) e[j] = load(s[j]) * alpha;
    }
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < width; ++j) top = e[j] > top ? e[j] : top;
    const float shift = top == -INFINITY ? 0.0f : top;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < width; ++j) {
      e[j] = e[j] == -INFINITY ? 0.0f : exponential(e[j] - shift);
      sum += e[j];
    }
    lse[line] = shift + std::log(sum);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;  // a line without any open key attends to nothing
    if (drops) {
      const Line keep(drop, row * shape.queries + query, head);
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) store(s[j], e[j] * inverse * keep.factor(j));
    } else {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) store(s[j], e[j] * inverse);
    }
  });
}

// From scores and the gradients of the dropped probabilities to these probabilities and the gradients of the scores.
template <class T, bool drops>
void softmax_backward(T* scores, T* grads, const float* lse, const Shape& shape, float alpha, const uint8_t* mask,
                      int64_t mask_stride, const Dropout& drop, int threads) {
  const int64_t width = shape.width;
  for_each_line(shape, 2, threads, [&](int64_t line, int64_t row, int64_t head, int64_t query, float* p) {
    float* g = p + width;
    T* s = scores + line * width;
    T* ds = grads + line * width;
    const float shift = lse[line];
    float mean = 0.0f;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) p[j] = exponential(load(s[j]) * alpha - shift);
    if (mask) {
      const uint8_t* open = mask + row * mask_stride + query * width;
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) p[j] = open[j] ? p[j] : 0.0f;
    }
    if (drops) {
      const Line keep(drop, row * shape.queries + query, head);
#pragma omp simd reduction(+ : mean)
      for (int64_t j = 0; j < width; ++j) {
        const float factor = keep.factor(j);
        g[j] = load(ds[j]) * factor;
        mean += p[j] * g[j];
        store(s[j], p[j] * factor);
      }
    } else {
#pragma omp simd reduction(+ : mean)
      for (int64_t j = 0; j < width; ++j) {
        g[j] = load(ds[j]);
        mean += p[j] * g[j];
        store(s[j], p[j]);
      }
    }
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) store(ds[j], p[j] * (g[j] - mean) * alpha);
  });
}

}  // namespace

#define SHAPE int64_t rows, int64_t heads, int64_t queries, int64_t width
#define DROPOUT const int32_t *tokens, const int32_t *features, int64_t stride, int32_t threshold, float scale
#define MASK float alpha, const uint8_t *mask, int64_t mask_stride
#define EXPORT(T)                                                                                                    \
  extern "C" void dropout_##T(const T* in, T* out, SHAPE, DROPOUT, int threads) {                                    \
    dropout(in, out, {rows, heads, queries, width}, {tokens, features, stride, threshold, scale}, threads);          \
  }                                                                                                                  \
  extern "C" void softmax_##T(T* scores, float* lse, SHAPE, MASK, DROPOUT, int threads) {                            \
    (tokens ? softmax<T, true> : softmax<T, false>)(scores, lse, {rows, heads, queries, width}, alpha, mask,         \
                                                    mask_stride, {tokens, features, stride, threshold, scale},       \
                                                    threads);                                                        \
  }                                                                                                                  \
  extern "C" void softmax_backward_##T(T* scores, T* grads, const float* lse, SHAPE, MASK, DROPOUT, int threads) {   \
    (tokens ? softmax_backward<T, true> : softmax_backward<T, false>)(                                               \
        scores, grads, lse, {rows, heads, queries, width}, alpha, mask, mask_stride,                                 \
        {tokens, features, stride, threshold, scale}, threads);                                                      \
  }

using float32 = float;
EXPORT(float32)
EXPORT(bfloat16)
