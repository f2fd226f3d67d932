"""Convolution of images (a cross-correlation, as in torch): each filter is laid over every place of each image.

conv2d(x, w, *, stride, padding, dilation, groups) -> y

    x  [batch, channels, height, width]             float16 | bfloat16 | float32 | float64
    w  [filters, channels / groups, rows, columns]  dtype of x
    y  [batch, filters, ...]                        dtype of x; float16 and bfloat16 are added in float32
    stride, padding, dilation, groups               whole numbers, as in torch

Tensors may have any strides, as with channels_last, where the channels of a pixel adjoin.
Implementations that autograd can differentiate have a backward as well (``workload.pass=bwd``): dx and dw.
"""
