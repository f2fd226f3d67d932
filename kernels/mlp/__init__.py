"""Forward pass of a multilayer perceptron, the activation after every layer including the last (Stanford CS336).

mlp(x, w1, b1, ..., wL, bL, *, activation) -> y

    x  [batch, dim]  float16 | bfloat16 | float32 | float64
    w  [dim, dim]    as in nn.Linear: each layer is h = activation(h @ w.T + b)
    b  [dim]
    y  [batch, dim]  dtype of x; float16 and bfloat16 are rounded after each linear layer and each activation
    activation       "gelu", exact (erf), or "relu"

Autograd must be able to differentiate the result, since training calls backward on it.
"""
