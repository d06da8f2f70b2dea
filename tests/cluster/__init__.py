"""A real Kubernetes control plane for tests: etcd, kube-apiserver and kube-controller-manager as processes."""
