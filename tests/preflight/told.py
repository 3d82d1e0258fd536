"""What findings say, in the form that tests compare."""

from collections.abc import Iterable

from lit_trainer.preflight.findings import Finding


def kinds(findings: Iterable[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


def only(findings: Iterable[Finding]) -> tuple[str, str]:
    (finding,) = findings
    return finding.kind, finding.text


def texts(findings: Iterable[Finding], kind: str) -> list[str]:
    return [finding.text for finding in findings if finding.kind == kind]
