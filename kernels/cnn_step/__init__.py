"""A small convolutional network for images: two blocks of ``kernels.conv_bn_relu_pool`` and an MLP of two layers.

cnn_step(x, w1, gamma1, beta1, w2, gamma2, beta2, ..., d) -> logits

    x               [batch, channels, height, width]           float16 | bfloat16 | float32 | float64
    w, gamma, beta  of a block, with 3 x 3 filters, padding 1, and windows of 2 x 2 numbers
    a, b            [hidden, features], [hidden]               features: all numbers of an image after the second block
    c, d            [classes, hidden], [classes]
    logits          [batch, classes]                           c relu(a features + b) + d

All parameters have the dtype of x. Autograd must be able to differentiate the result, since training calls backward
on it.
"""
