"""A node for tests: the part of a kubelet and of a container runtime that this project depends on.

`kubelet.Kubelet` starts a pod's containers on this machine from its final spec and leaves the machine as it was.
"""
