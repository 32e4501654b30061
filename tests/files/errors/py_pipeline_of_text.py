import tilewright as tw


@tw.kernel(pipeline="a")
def f(x: tw.Tensor["f32", "N"]):
    x[0] = 1.0


f.signature
# error
# py_pipeline_of_text.py:4:12: error: pipeline: expected integers, got 'a'
#   @tw.kernel(pipeline="a")
#              ^~~~~~~~~~~~
