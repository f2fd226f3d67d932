"""Sum of two tensors, element by element: the simplest kernel.

add(a, b) -> y

    a, b  any shape, the same  float16 | bfloat16 | float32 | float64
    y     that shape           that dtype; float16 and bfloat16 are added in float32
"""
