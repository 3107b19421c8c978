//! The oracle's own client: plain requests with an administrator's rights, independent of sidewatch.

use std::path::Path;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use super::{check, wait_for};

/// What the server answered.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The body.
    pub(crate) body: Value,
}

/// A client with the rights of its kubeconfig.
#[derive(Clone)]
pub(crate) struct Admin {
    client: kube::Client,
}

impl Admin {
    /// A client for this kubeconfig.
    pub(crate) async fn new(kubeconfig: &Path) -> Self {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .expect("a kubeconfig");
        // A create that is repeated inside the client fails with 409 although it succeeded.
        config.default_retry = false;
        Self { client: kube::Client::try_from(config).expect("a client") }
    }

    /// Sends a request; `Err` when there was no answer.
    pub(crate) async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, String> {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let bytes = body.map(|body| serde_json::to_vec(body).expect("JSON")).unwrap_or_default();
        let request =
            Request::builder().method(method).uri(path).header("content-type", content).body(Body::from(bytes));
        let response =
            self.client.send(request.expect("a request")).await.map_err(|error| format!("{method} {path}: {error}"))?;
        let status = response.status().as_u16();
        let bytes =
            response.into_body().collect().await.map_err(|error| format!("{method} {path}: {error}"))?.to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes)));
        Ok(Answer { status, body })
    }

    /// A GET that may fail.
    pub(crate) async fn try_get(&self, path: &str) -> Result<Answer, String> {
        self.send("GET", path, None).await
    }

    /// A GET that must succeed.
    pub(crate) async fn get(&self, path: &str) -> Value {
        self.must("GET", path, None).await
    }

    /// A POST that must succeed.
    pub(crate) async fn create(&self, path: &str, body: Value) -> Value {
        self.must("POST", path, Some(&body)).await
    }

    /// A merge patch that must succeed.
    pub(crate) async fn patch(&self, path: &str, body: Value) -> Value {
        self.must("PATCH", path, Some(&body)).await
    }

    /// A DELETE that must succeed.
    pub(crate) async fn delete(&self, path: &str) -> Value {
        // Pods would wait for a kubelet.
        self.must("DELETE", path, Some(&json!({ "gracePeriodSeconds": 0 }))).await
    }

    async fn must(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let answer = self.send(method, path, body).await.unwrap_or_else(|error| panic!("{error}"));
        assert!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.body);
        answer.body
    }

    /// A ConfigMap with one datum.
    pub(crate) async fn config_map(&self, namespace: &str, name: &str, value: &str) -> Value {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        self.create(
            &path,
            json!({ "metadata": { "name": name, "labels": { "app": "test" } }, "data": { "value": value } }),
        )
        .await
    }

    /// A role of this name with these rules, and its binding to the subjects.
    pub(crate) async fn bind(&self, namespace: &str, name: &str, rules: Value, subjects: Value) {
        let base = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
        self.create(&format!("{base}/roles"), json!({ "metadata": { "name": name }, "rules": rules })).await;
        let reference = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name });
        let binding = json!({ "metadata": { "name": name }, "roleRef": reference, "subjects": subjects });
        self.create(&format!("{base}/rolebindings"), binding).await;
    }

    /// Defines `widgets.example.com` and returns when the server serves it.
    pub(crate) async fn install_widgets(&self) {
        let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let version = json!({ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": any } });
        let names = json!({ "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList" });
        let spec = json!({ "group": "example.com", "scope": "Namespaced", "names": names, "versions": [version] });
        let definition = json!({ "metadata": { "name": "widgets.example.com" }, "spec": spec });
        self.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
        wait_for("widgets.example.com to be served", Duration::from_secs(60), || async {
            let answer = self.try_get("/apis/example.com/v1/widgets").await?;
            check(answer.status == 200, || format!("{} {}", answer.status, answer.body))
        })
        .await;
    }

    /// A widget of this size.
    pub(crate) async fn widget(&self, namespace: &str, name: &str, size: u64) -> Value {
        let object = json!({
            "apiVersion": "example.com/v1",
            "kind": "Widget",
            "metadata": { "name": name },
            "spec": { "size": size },
        });
        self.create(&format!("/apis/example.com/v1/namespaces/{namespace}/widgets"), object).await
    }

    /// Opens a watch; `path` brings its query.
    pub(crate) async fn watch(&self, path: &str) -> Result<Watch, String> {
        let request = Request::get(path).body(Body::from(Vec::new())).expect("a request");
        let response = self.client.send(request).await.map_err(|error| format!("{path}: {error}"))?;
        let status = response.status();
        check(status.is_success(), || format!("{path}: {status}"))?;
        Ok(Watch { body: response.into_body(), rest: Vec::new() })
    }
}

/// An open watch.
pub(crate) struct Watch {
    body: Body,
    rest: Vec<u8>,
}

impl Watch {
    /// The next event, nothing when the server has ended the watch.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("the API server sends JSON"));
            }
            let frame = self.body.frame().await?.ok()?;
            self.rest.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }
}
