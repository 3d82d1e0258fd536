"""The report of a run: what its folder holds, as figures and as one page. It needs neither the model nor torch."""
