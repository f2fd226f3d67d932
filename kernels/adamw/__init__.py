"""A step of AdamW over a list of parameters, in place (Loshchilov & Hutter 2019, arXiv:1711.05101).

adamw(p1, ..., g1, ..., m1, ..., v1, ..., *, step, lr, beta1, beta2, eps, weight_decay) -> None

    Parameters, then as many gradients, first moments and second moments:
    p, g          any shape  float16 | bfloat16 | float32 | float64
    m, v          shape of p  the dtype of p, or float32
    step          number of this step, from 1

For each parameter: p *= 1 - lr weight_decay, m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, then
p -= lr / (1 - beta1^step) m / ((v / (1 - beta2^step))^(1/2) + eps). Gradients do not change.
"""
