"""GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415): y = x * Phi(x), element by element.

gelu(x, *, form) -> y

    x     any shape  float16 | bfloat16 | float32 | float64
    y     shape of x  dtype of x; float16 and bfloat16 are computed in float32
    form  "erf":  Phi(x) = (1 + erf(x / sqrt(2))) / 2
          "tanh": Phi(x) = (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2

Implementations that autograd can differentiate have a backward as well (``workload.pass=bwd``).
"""
