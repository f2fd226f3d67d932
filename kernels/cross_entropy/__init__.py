"""Cross entropy of each row of logits with a target class: loss = log sum_k exp(x_k) - x_target, one for each row.

cross_entropy(x, target) -> loss

    x       [rows, vocab]  float16 | bfloat16 | float32 | float64: logits
    target  [rows]         int64: a column of x, or -100 for a row that is ignored: its loss and its gradient are 0
    loss    [rows]         dtype of x; float16 and bfloat16 are computed in float32

Autograd can differentiate the implementations with respect to x (``workload.pass=bwd``, ``fwd_bwd``).
"""
