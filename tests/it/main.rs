//! The sidecar against a real kube-apiserver. Run by `make it`.

mod support;
