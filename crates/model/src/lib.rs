//! A pure, faithful model of the Kubernetes API server.
