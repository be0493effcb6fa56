"""Generation as functions: three loops (``generate``), the laws of their rows (``law``) and where they end (``ending``)."""

__all__: list[str] = []
