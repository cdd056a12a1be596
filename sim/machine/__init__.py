"""What a job runs on and what each work takes there: GPUs, links, collectives and prices."""
