"""A block of a convolutional network: max_pool(relu(batch_norm(convolution))).

conv_bn_relu_pool(x, w, gamma, beta, mean, variance, *, padding, pool, eps) -> y

    x                      [batch, channels, height, width]       float16 | bfloat16 | float32, any strides
    w                      [filters, channels, rows, columns]     dtype of x
    gamma, beta            [filters]                              dtype of x
    mean, variance         [filters], for inference; in training None: those of the batch
    y                      [batch, filters, height / pool, ...]   dtype of x
    padding, pool, eps     zeros around an image; rows of a window; added to the variance
"""
