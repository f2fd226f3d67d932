"""What ``python -m runner`` prints alone, and ``--help`` first: what it answers, and ten things to type."""

FIRST_WORDS = """\
Which implementation of this GPU operation is fastest, how sure are we, and why?

  python -m runner workload=softmax workload.cols=1000,4096 -m          sweep a size
  python -m runner workload=gelu impl=naive,torch,compiled,triton -m    compare implementations
  python -m runner workload=gelu impl=torch,file impl.path=my.py:f -m   your own function beside torch
  python -m runner workload=rms_norm.py impl=reference,compiled -m      your own operation, in one file
  python -m runner workload=mlp impl=compiled -m                        the workload's default sweep
  python -m runner workload=mlp 'measure=[benchmark,profile]'           one case, and why is it slow?
  python -m runner plan workload=gelu impl=naive,torch -m               what would run, and how long will it take?
  python -m runner resume=last                                          go on after an interruption
  python -m runner report html                                          the newest run as a page; show: its table
  python -m runner --help workload=mlp impl=compiled                    all commands, options and their fields
"""
