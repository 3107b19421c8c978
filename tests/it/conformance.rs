//! What sidewatch takes for granted about an API server, as a list of checks over HTTP.
//!
//! The same list runs against the model and against a real kube-apiserver: where one of them
//! differs, either the model or our reading of Kubernetes is wrong. Each check makes objects of its
//! own in a namespace of its own, so a shared server is fine; the last ones compact and restart it.

use std::fmt::Display;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

/// How long a condition may take to come true, slow machines included.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that the test does to the server; it returns when that is done.
pub(crate) type Hook = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync>;

/// A server, how to get in, and what can be done to it.
pub(crate) struct ServerUnderTest {
    /// URL without a slash at its end.
    pub(crate) base_url: String,
    /// PEM file of the authority that signed the server's certificate.
    pub(crate) certificate_authority: Option<PathBuf>,
    /// Token of an administrator.
    pub(crate) bearer_token: Option<String>,
    /// PEM files of a client's certificate and key.
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
    /// Compacts etcd to the newest revision.
    pub(crate) compact: Hook,
    /// Restarts the API server under the same URL.
    pub(crate) restart: Hook,
}

impl ServerUnderTest {
    fn client(&self) -> Result<kube::Client, String> {
        let mut config = kube::Config::new(self.base_url.parse().map_err(text)?);
        config.root_cert_file.clone_from(&self.certificate_authority);
        config.auth_info.token = self.bearer_token.clone().map(Into::into);
        if let Some((certificate, key)) = &self.client_certificate {
            config.auth_info.client_certificate = Some(certificate.display().to_string());
            config.auth_info.client_key = Some(key.display().to_string());
        }
        config.default_retry = false;
        kube::Client::try_from(config).map_err(text)
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Fails a check with a sentence that shows both sides.
macro_rules! same {
    ($left:expr, $right:expr) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err(format!("{}:{}: {} is {left:?}, not {right:?}", file!(), line!(), stringify!($left)));
        }
    }};
}

/// Fails a check unless something holds; shows the value given.
macro_rules! holds {
    ($condition:expr, $shown:expr) => {
        if !$condition {
            return Err(format!("{}:{}: {} does not hold: {}", file!(), line!(), stringify!($condition), $shown));
        }
    };
}

type Checked = Result<(), String>;

/// One answer: status, content type and text.
struct Answer {
    status: u16,
    content_type: String,
    retry_after: Option<String>,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    fn expect(self, status: u16) -> Result<Value, String> {
        if self.status == status {
            Ok(self.json())
        } else {
            Err(format!("{} in place of {status}: {}", self.status, self.text))
        }
    }
}

/// A client with a namespace of its own.
struct World<'a> {
    server: &'a ServerUnderTest,
    client: kube::Client,
    namespace: String,
}

impl World<'_> {
    fn maps(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.namespace)
    }

    fn map(&self, name: &str) -> String {
        format!("{}/{name}", self.maps())
    }

    fn leases(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    fn widgets(&self) -> String {
        format!("/apis/example.com/v1/namespaces/{}/widgets", self.namespace)
    }

    async fn send(&self, method: &str, target: &str, headers: &[(&str, &str)], body: Value) -> Result<Answer, String> {
        let mut request = http::Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let exchange = async {
            let response = self.client.send(request.body(Body::from(body)).map_err(text)?).await.map_err(text)?;
            let header =
                |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
            let (status, retry_after) = (response.status().as_u16(), header("retry-after"));
            let content_type = header("content-type").unwrap_or_default();
            let bytes = response.into_body().collect().await.map_err(text)?.to_bytes();
            Ok(Answer { status, content_type, retry_after, text: String::from_utf8_lossy(&bytes).into_owned() })
        };
        timeout(PATIENCE, exchange).await.map_err(text)?
    }

    async fn get(&self, target: &str) -> Result<Answer, String> {
        self.send("GET", target, &[], Value::Null).await
    }

    async fn post(&self, target: &str, body: Value) -> Result<Answer, String> {
        self.send("POST", target, &[("content-type", "application/json")], body).await
    }

    async fn put(&self, target: &str, body: Value) -> Result<Answer, String> {
        self.send("PUT", target, &[("content-type", "application/json")], body).await
    }

    async fn patch(&self, target: &str, body: Value) -> Result<Answer, String> {
        self.send("PATCH", target, &[("content-type", "application/merge-patch+json")], body).await
    }

    async fn delete(&self, target: &str, body: Value) -> Result<Answer, String> {
        self.send("DELETE", target, &[("content-type", "application/json")], body).await
    }

    async fn create_map(&self, name: &str, labels: Value) -> Result<Value, String> {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"k": "1"}});
        self.post(&self.maps(), body).await?.expect(201)
    }

    async fn change_map(&self, name: &str, value: &str) -> Result<Value, String> {
        self.patch(&self.map(name), json!({"data": {"k": value}})).await?.expect(200)
    }

    /// Reads lines of a watch until there are `enough`, or the body ends, or patience does.
    async fn watch(&self, target: &str, accept: &str, enough: usize) -> Result<Vec<Value>, String> {
        let request = http::Request::builder().uri(target).header("accept", accept);
        let request = request.body(Body::from(Vec::new())).map_err(text)?;
        let exchange = async {
            let response = self.client.send(request).await.map_err(text)?;
            same!(response.status().as_u16(), 200);
            let mut body = response.into_body();
            let (mut lines, mut rest) = (Vec::new(), Vec::new());
            while lines.len() < enough {
                let Some(frame) = body.frame().await else { break };
                rest.extend_from_slice(&frame.map_err(text)?.into_data().unwrap_or_default());
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    lines.push(serde_json::from_slice(&line).map_err(text)?);
                }
            }
            Ok(lines)
        };
        timeout(PATIENCE, exchange).await.map_err(|_| format!("no end of {target}"))?
    }

    async fn watch_json(&self, target: &str, enough: usize) -> Result<Vec<Value>, String> {
        self.watch(target, "application/json", enough).await
    }

    /// Repeats a request until it answers with a status.
    async fn until_status(&self, target: &str, status: u16) -> Result<Answer, String> {
        let start = Instant::now();
        loop {
            let answer = self.get(target).await;
            match answer {
                Ok(answer) if answer.status == status => return Ok(answer),
                _ if start.elapsed() < PATIENCE => sleep(Duration::from_millis(50)).await,
                Ok(answer) => return Err(format!("{target} still answers {}: {}", answer.status, answer.text)),
                Err(error) => return Err(error),
            }
        }
    }
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

fn number(object: &Value) -> u64 {
    version(object).parse().unwrap_or_default()
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().into_iter().flatten();
    items.map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

fn kinds(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| event["type"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Runs the whole list; the names are the promises.
pub(crate) async fn run(server: &ServerUnderTest) -> Vec<(&'static str, Result<(), String>)> {
    let mut results = Vec::new();
    macro_rules! check {
        ($($name:ident),* $(,)?) => {
            $(
                let result = match open(server).await {
                    Ok(world) => $name(&world).await,
                    Err(error) => Err(format!("no namespace: {error}")),
                };
                results.push((stringify!($name), result));
            )*
        };
    }
    check!(
        built_in_items_have_no_kind_and_custom_items_do,
        created_objects_have_identity_and_managed_fields,
        pages_share_the_version_of_the_first,
        an_exact_list_reads_the_past,
        any_version_ignores_the_limit,
        a_version_of_the_future_is_a_timeout,
        list_options_that_exclude_one_another_are_invalid,
        selectors_choose_and_bad_ones_are_refused,
        unknown_paths_and_methods_are_told_apart,
        metadata_alone_can_be_listed_and_watched,
        a_watch_shows_every_change_in_order,
        a_watch_resumes_after_a_version,
        a_watch_of_the_future_is_silent,
        objects_enter_and_leave_a_selector,
        a_bookmark_comes_before_the_end,
        a_streaming_list_ends_with_a_bookmark,
        a_streaming_list_of_the_future_fails_inside_the_stream,
        a_name_is_taken_once,
        a_stale_write_is_refused,
        a_lease_is_compared_and_swapped,
        a_lease_is_created_by_put_whatever_version_it_names,
        a_write_that_changes_nothing_keeps_the_version,
        a_custom_object_counts_generations,
        a_delete_has_preconditions,
        finalizers_hold_an_object,
        objects_need_a_namespace,
        discovery_comes_whole_and_in_parts,
        compacted_lists_and_pages_expire,
        a_restarted_server_refuses_old_watches,
    );
    results
}

async fn open(server: &ServerUnderTest) -> Result<World<'_>, String> {
    let mut world = World { server, client: server.client()?, namespace: String::new() };
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "conformance-"}});
    let namespace = world.post("/api/v1/namespaces", body).await?.expect(201)?;
    world.namespace = namespace["metadata"]["name"].as_str().ok_or("a namespace has a name")?.to_owned();
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["wd"]},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    });
    let created = world.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await?;
    holds!(matches!(created.status, 201 | 409), created.text);
    world.until_status("/apis/example.com/v1/widgets", 200).await?;
    Ok(world)
}

async fn built_in_items_have_no_kind_and_custom_items_do(world: &World<'_>) -> Checked {
    world.create_map("a", json!({})).await?;
    let widget =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}});
    let created = world.post(&world.widgets(), widget).await?.expect(201)?;
    let maps = world.get(&format!("{}?labelSelector=", world.maps())).await?.expect(200)?;
    same!((maps["kind"].as_str(), maps["apiVersion"].as_str()), (Some("ConfigMapList"), Some("v1")));
    let item = &maps["items"][0];
    same!((item.get("kind"), item.get("apiVersion")), (None, None));
    let widgets = world.get(&world.widgets()).await?.expect(200)?;
    same!(widgets["kind"], json!("WidgetList"));
    same!(widgets["items"][0], created);
    same!(widgets["items"][0]["kind"], json!("Widget"));
    Ok(())
}

async fn created_objects_have_identity_and_managed_fields(world: &World<'_>) -> Checked {
    let created = world.create_map("a", json!({"x": "1"})).await?;
    let metadata = &created["metadata"];
    same!(metadata["namespace"], json!(world.namespace));
    same!(metadata["uid"].as_str().map(str::len), Some(36));
    same!(metadata["creationTimestamp"].as_str().map(str::len), Some(20));
    holds!(metadata["managedFields"][0]["fieldsV1"].is_object(), metadata);
    same!(metadata.get("generation"), None);
    same!(world.get(&world.map("a")).await?.expect(200)?, created);
    let again = world.post(&world.maps(), json!({"metadata": {"generateName": "g-"}})).await?.expect(201)?;
    let name = again["metadata"]["name"].as_str().unwrap_or_default();
    holds!(name.starts_with("g-") && name.len() == 7, name);
    Ok(())
}

async fn pages_share_the_version_of_the_first(world: &World<'_>) -> Checked {
    for name in ["a", "b", "c"] {
        world.create_map(name, json!({"paged": "yes"})).await?;
    }
    let select = "labelSelector=paged%3Dyes";
    let first = world.get(&format!("{}?limit=2&{select}", world.maps())).await?.expect(200)?;
    same!(names(&first), ["a", "b"]);
    same!(first["metadata"].get("remainingItemCount"), None);
    world.change_map("c", "2").await?;
    world.create_map("d", json!({"paged": "yes"})).await?;
    world.delete(&world.map("a"), Value::Null).await?.expect(200)?;
    let token = first["metadata"]["continue"].as_str().unwrap_or_default();
    let second = world.get(&format!("{}?limit=2&{select}&continue={token}", world.maps())).await?.expect(200)?;
    same!(names(&second), ["c"]);
    same!(second["items"][0]["data"]["k"], json!("1"));
    same!(version(&second), version(&first));
    holds!(second["metadata"]["continue"].as_str().is_none_or(str::is_empty), second["metadata"]);
    let widgets = world.widgets();
    for name in ["x", "y", "z"] {
        world
            .post(&widgets, json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}}))
            .await?
            .expect(201)?;
    }
    let first = world.get(&format!("{widgets}?limit=1")).await?.expect(200)?;
    same!(first["metadata"]["remainingItemCount"], json!(2));
    let token = first["metadata"]["continue"].as_str().unwrap_or_default();
    let second = world.get(&format!("{widgets}?limit=1&continue={token}")).await?.expect(200)?;
    same!((names(&second), second["metadata"]["remainingItemCount"].clone()), (vec!["y".to_owned()], json!(1)));
    let with_version = world.get(&format!("{widgets}?limit=1&continue={token}&resourceVersion=5")).await?;
    with_version.expect(400)?;
    world.get(&format!("{widgets}?limit=1&continue=abc")).await?.expect(400)?;
    Ok(())
}

async fn an_exact_list_reads_the_past(world: &World<'_>) -> Checked {
    let old = version(&world.create_map("a", json!({})).await?);
    world.change_map("a", "2").await?;
    world.create_map("b", json!({})).await?;
    world.delete(&world.map("a"), Value::Null).await?.expect(200)?;
    let exact = format!(
        "{}?fieldSelector=metadata.name!%3Dkube-root-ca.crt&resourceVersion={old}&resourceVersionMatch=Exact",
        world.maps()
    );
    let list = world.get(&exact).await?.expect(200)?;
    same!((names(&list), version(&list)), (vec!["a".to_owned()], old.clone()));
    same!(list["items"][0]["data"]["k"], json!("1"));
    // A limit without a match rule means exact as well.
    let list = world.get(&format!("{}?resourceVersion={old}&limit=500", world.maps())).await?.expect(200)?;
    same!(version(&list), old);
    let list = world
        .get(&format!("{}?resourceVersion={old}&resourceVersionMatch=NotOlderThan", world.maps()))
        .await?
        .expect(200)?;
    holds!(number(&list) > old.parse().unwrap_or(0) && !names(&list).contains(&"a".to_owned()), list);
    Ok(())
}

async fn any_version_ignores_the_limit(world: &World<'_>) -> Checked {
    world.create_map("a", json!({})).await?;
    world.create_map("b", json!({})).await?;
    let target = format!("{}?resourceVersion=0&limit=1", world.maps());
    let start = Instant::now();
    loop {
        // Version 0 may be behind; it gets there.
        let list = world.get(&target).await?.expect(200)?;
        if names(&list).len() >= 2 {
            holds!(list["metadata"]["continue"].as_str().is_none_or(str::is_empty), list["metadata"]);
            return Ok(());
        }
        holds!(start.elapsed() < PATIENCE, list);
        sleep(Duration::from_millis(20)).await;
    }
}

async fn a_version_of_the_future_is_a_timeout(world: &World<'_>) -> Checked {
    for matching in ["NotOlderThan", "Exact"] {
        let answer =
            world.get(&format!("{}?resourceVersion=900000000&resourceVersionMatch={matching}", world.maps())).await?;
        same!(answer.retry_after.as_deref(), Some("1"));
        let status = answer.expect(504)?;
        same!(status["reason"], json!("Timeout"));
        same!(status["details"]["causes"][0]["reason"], json!("ResourceVersionTooLarge"));
        same!(status["details"]["retryAfterSeconds"], json!(1));
    }
    Ok(())
}

async fn list_options_that_exclude_one_another_are_invalid(world: &World<'_>) -> Checked {
    for (query, field) in [
        ("resourceVersionMatch=Exact", "resourceVersionMatch"),
        ("resourceVersionMatch=Exact&resourceVersion=0", "resourceVersionMatch"),
        ("resourceVersionMatch=Foo&resourceVersion=5", "resourceVersionMatch"),
        ("sendInitialEvents=true", "sendInitialEvents"),
        ("watch=1&sendInitialEvents=true", "resourceVersionMatch"),
        ("watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=1", "resourceVersionMatch"),
    ] {
        let status = world.get(&format!("{}?{query}", world.maps())).await?.expect(422)?;
        same!((status["reason"].clone(), status["kind"].clone()), (json!("Invalid"), json!("Status")));
        same!(status["details"]["causes"][0]["field"], json!(field));
        same!(status["details"]["kind"], json!("ListOptions"));
    }
    let status = world.get(&format!("{}?resourceVersion=abc", world.maps())).await?.expect(400)?;
    same!(status["reason"], json!("BadRequest"));
    world.get(&format!("{}?watch=1&resourceVersion=abc", world.maps())).await?.expect(500)?;
    world.get(&format!("{}?limit=x", world.maps())).await?.expect(400)?;
    Ok(())
}

async fn selectors_choose_and_bad_ones_are_refused(world: &World<'_>) -> Checked {
    world.create_map("a", json!({"app": "web"})).await?;
    world.create_map("b", json!({"app": "db"})).await?;
    for (query, expected) in [
        ("labelSelector=app%3Dweb", vec!["a"]),
        ("labelSelector=app%20in%20(web,db)", vec!["a", "b"]),
        ("labelSelector=app,app!%3Dweb", vec!["b"]),
        ("labelSelector=app&fieldSelector=metadata.name%3Da", vec!["a"]),
        ("labelSelector=none", vec![]),
    ] {
        let list = world.get(&format!("{}?{query}", world.maps())).await?.expect(200)?;
        same!((query, names(&list)), (query, expected.into_iter().map(str::to_owned).collect::<Vec<_>>()));
    }
    for bad in ["labelSelector=a%3D%3D%3Db", "fieldSelector=foo%3Dbar", "fieldSelector=foo"] {
        for watch in ["", "&watch=1"] {
            let status = world.get(&format!("{}?{bad}{watch}", world.maps())).await?.expect(400)?;
            same!(status["reason"], json!("BadRequest"));
        }
    }
    world.get(&format!("{}?fieldSelector=foo%3Dbar", world.widgets())).await?.expect(400)?;
    Ok(())
}

async fn unknown_paths_and_methods_are_told_apart(world: &World<'_>) -> Checked {
    let status = world.get(&world.map("none")).await?.expect(404)?;
    same!(status["details"], json!({"name": "none", "kind": "configmaps"}));
    same!(status["reason"], json!("NotFound"));
    let status = world.get("/apis/apps/v1/nopes").await?.expect(404)?;
    same!((status["reason"].clone(), status["details"].clone()), (json!("NotFound"), json!({})));
    let answer = world.get("/apis/nope.example.com/v1/nopes").await?;
    same!((answer.status, answer.json()), (404, Value::Null));
    holds!(answer.content_type.starts_with("text/plain"), answer.content_type);
    let status = world.put(&world.maps(), json!({})).await?.expect(405)?;
    same!(status["reason"], json!("MethodNotAllowed"));
    let weird = world.send("PATCH", &world.map("none"), &[("content-type", "application/weird")], json!({})).await?;
    same!(weird.status, 415);
    let binary =
        world.send("GET", &world.widgets(), &[("accept", "application/vnd.kubernetes.protobuf")], Value::Null).await?;
    same!(binary.status, 406);
    Ok(())
}

async fn metadata_alone_can_be_listed_and_watched(world: &World<'_>) -> Checked {
    world.create_map("a", json!({"only": "this"})).await?;
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let target = format!("{}?labelSelector=only", world.maps());
    let list = world.send("GET", &target, &[("accept", accept)], Value::Null).await?.expect(200)?;
    same!(
        (list["kind"].clone(), list["apiVersion"].clone()),
        (json!("PartialObjectMetadataList"), json!("meta.k8s.io/v1"))
    );
    same!(list["items"][0]["kind"], json!("PartialObjectMetadata"));
    same!((list["items"][0].get("data"), list["items"][0]["metadata"]["name"].clone()), (None, json!("a")));
    let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let events = world.watch(&format!("{target}&watch=1&timeoutSeconds=5"), accept, 1).await?;
    same!(events.first().map(|event| event["object"].clone()), Some(list["items"][0].clone()));
    Ok(())
}

async fn a_watch_shows_every_change_in_order(world: &World<'_>) -> Checked {
    let before = version(&world.get(&world.maps()).await?.expect(200)?);
    let created = world.create_map("a", json!({"seen": "yes"})).await?;
    let changed = world.change_map("a", "2").await?;
    let answer = world.delete(&world.map("a"), Value::Null).await?.expect(200)?;
    same!(
        (answer["status"].clone(), answer["details"]["uid"].clone()),
        (json!("Success"), created["metadata"]["uid"].clone())
    );
    let target = format!("{}?watch=1&resourceVersion={before}&timeoutSeconds=5&labelSelector=seen", world.maps());
    let events = world.watch_json(&target, 3).await?;
    same!(kinds(&events), ["ADDED", "MODIFIED", "DELETED"]);
    same!((&events[0]["object"], &events[1]["object"]), (&created, &changed));
    let last = &events[2]["object"];
    holds!(number(last) > number(&changed), version(last));
    let mut expected = changed.clone();
    expected["metadata"]["resourceVersion"] = last["metadata"]["resourceVersion"].clone();
    same!(last, &expected);
    Ok(())
}

async fn a_watch_resumes_after_a_version(world: &World<'_>) -> Checked {
    let created = world.create_map("a", json!({"seen": "yes"})).await?;
    let second = world.change_map("a", "2").await?;
    let third = world.change_map("a", "3").await?;
    let target = format!("{}?watch=1&timeoutSeconds=5&labelSelector=seen&resourceVersion=", world.maps());
    let events = world.watch_json(&format!("{target}{}", version(&created)), 2).await?;
    let versions: Vec<String> = events.iter().map(|event| version(&event["object"])).collect();
    same!(versions, [version(&second), version(&third)]);
    // Without a version, and with 0, the present state comes first.
    for start in ["", "0"] {
        let events = world.watch_json(&format!("{target}{start}"), 1).await?;
        same!(kinds(&events), ["ADDED"]);
        same!(events[0]["object"]["metadata"]["name"], json!("a"));
    }
    Ok(())
}

async fn a_watch_of_the_future_is_silent(world: &World<'_>) -> Checked {
    let target =
        format!("{}?watch=1&timeoutSeconds=3&allowWatchBookmarks=true&resourceVersion=900000000", world.maps());
    let (events, created) = tokio::join!(world.watch_json(&target, 1), world.create_map("a", json!({})));
    created?;
    same!(kinds(&events?), Vec::<String>::new());
    Ok(())
}

async fn objects_enter_and_leave_a_selector(world: &World<'_>) -> Checked {
    let before = version(&world.create_map("a", json!({"stage": "one"})).await?);
    let label = |value: &str| json!({"metadata": {"labels": {"stage": value}}});
    let entered = world.patch(&world.map("a"), label("two")).await?.expect(200)?;
    let left = world.patch(&world.map("a"), label("three")).await?.expect(200)?;
    let target =
        format!("{}?watch=1&timeoutSeconds=5&labelSelector=stage%3Dtwo&resourceVersion={before}", world.maps());
    let events = world.watch_json(&target, 2).await?;
    same!(kinds(&events), ["ADDED", "DELETED"]);
    same!(events[0]["object"], entered);
    let last = &events[1]["object"];
    same!((version(last), last["metadata"]["labels"].clone()), (version(&left), json!({"stage": "two"})));
    Ok(())
}

async fn a_bookmark_comes_before_the_end(world: &World<'_>) -> Checked {
    let before = version(&world.get(&world.maps()).await?.expect(200)?);
    let created = world.create_map("a", json!({"seen": "yes"})).await?;
    let target = format!(
        "{}?watch=1&timeoutSeconds=5&allowWatchBookmarks=true&labelSelector=seen&resourceVersion={before}",
        world.maps()
    );
    let events = world.watch_json(&target, usize::MAX).await?;
    let shown = kinds(&events);
    holds!(
        shown.len() >= 2 && shown[0] == "ADDED" && shown[1..].iter().all(|kind| kind == "BOOKMARK"),
        format!("{shown:?}")
    );
    let bookmark = &events[1]["object"];
    holds!(number(bookmark) >= number(&created), bookmark);
    same!((bookmark["kind"].clone(), bookmark["metadata"].get("name")), (json!("ConfigMap"), None));
    let events = world
        .watch_json(
            &target.replace("allowWatchBookmarks=true", "allowWatchBookmarks=false").replace("=5", "=3"),
            usize::MAX,
        )
        .await?;
    same!(kinds(&events), ["ADDED"]);
    Ok(())
}

async fn a_streaming_list_ends_with_a_bookmark(world: &World<'_>) -> Checked {
    let first = world.create_map("a", json!({"seen": "yes"})).await?;
    let second = world.create_map("b", json!({"seen": "yes"})).await?;
    let query = "watch=1&timeoutSeconds=10&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&labelSelector=seen";
    for bound in [String::new(), format!("&resourceVersion={}", version(&second))] {
        let target = format!("{}?{query}&allowWatchBookmarks=true{bound}", world.maps());
        let events = world.watch_json(&target, 3).await?;
        same!(kinds(&events), ["ADDED", "ADDED", "BOOKMARK"]);
        let mut shown = [version(&events[0]["object"]), version(&events[1]["object"])];
        shown.sort();
        let mut expected = [version(&first), version(&second)];
        expected.sort();
        same!(shown, expected);
        let end = &events[2]["object"];
        same!(end["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
        holds!(number(end) >= number(&second), end);
    }
    Ok(())
}

async fn a_streaming_list_of_the_future_fails_inside_the_stream(world: &World<'_>) -> Checked {
    let query =
        "watch=1&timeoutSeconds=20&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=900000000";
    let events = world.watch_json(&format!("{}?{query}", world.maps()), usize::MAX).await?;
    same!(kinds(&events), ["ERROR"]);
    same!(events[0]["object"]["code"], json!(504));
    same!(events[0]["object"]["details"]["causes"][0]["reason"], json!("ResourceVersionTooLarge"));
    Ok(())
}

async fn a_name_is_taken_once(world: &World<'_>) -> Checked {
    world.create_map("a", json!({})).await?;
    let status = world.post(&world.maps(), json!({"metadata": {"name": "a"}})).await?.expect(409)?;
    same!(
        (status["reason"].clone(), status["message"].clone()),
        (json!("AlreadyExists"), json!("configmaps \"a\" already exists"))
    );
    for (bad, code) in [
        (json!({"metadata": {"name": "B_"}}), 422),
        (json!({"metadata": {}}), 422),
        (json!({"metadata": {"name": "c", "namespace": "other"}}), 400),
        (json!({"metadata": {"name": "c", "resourceVersion": "5"}}), 500),
        (json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}}), 400),
    ] {
        let answer = world.post(&world.maps(), bad.clone()).await?;
        same!((&bad, answer.status), (&bad, code));
    }
    Ok(())
}

async fn a_stale_write_is_refused(world: &World<'_>) -> Checked {
    let created = world.create_map("a", json!({})).await?;
    world.change_map("a", "2").await?;
    let status = world.put(&world.map("a"), created.clone()).await?.expect(409)?;
    same!(status["reason"], json!("Conflict"));
    let patch = json!({"metadata": {"resourceVersion": version(&created)}, "data": {"k": "3"}});
    same!(world.patch(&world.map("a"), patch).await?.expect(409)?["reason"], json!("Conflict"));
    let foreign = json!({"metadata": {"name": "a", "uid": "00000000-0000-4000-8000-000000000000"}});
    same!(world.put(&world.map("a"), foreign).await?.expect(409)?["reason"], json!("Conflict"));
    world.put(&world.map("a"), json!({"metadata": {"name": "b"}})).await?.expect(400)?;
    world.put(&world.map("none"), json!({"metadata": {"name": "none"}})).await?.expect(404)?;
    // A ConfigMap may be replaced without saying which version.
    let replaced =
        world.put(&world.map("a"), json!({"metadata": {"name": "a"}, "data": {"z": "1"}})).await?.expect(200)?;
    same!(
        (replaced["data"].clone(), replaced["metadata"]["uid"].clone()),
        (json!({"z": "1"}), created["metadata"]["uid"].clone())
    );
    Ok(())
}

async fn a_lease_is_compared_and_swapped(world: &World<'_>) -> Checked {
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}});
    let created = world.post(&world.leases(), lease.clone()).await?.expect(201)?;
    let target = format!("{}/l", world.leases());
    let mut next = created.clone();
    next["spec"]["holderIdentity"] = json!("b");
    next["metadata"]["annotations"] = json!({"example.com/note": "x"});
    let swapped = world.put(&target, next.clone()).await?.expect(200)?;
    holds!(number(&swapped) > number(&created), version(&swapped));
    same!(swapped["metadata"]["annotations"], json!({"example.com/note": "x"}));
    let status = world.put(&target, next).await?.expect(409)?;
    same!(
        (status["reason"].clone(), status["details"]["group"].clone()),
        (json!("Conflict"), json!("coordination.k8s.io"))
    );
    let status = world.put(&target, lease).await?.expect(422)?;
    same!(status["details"]["causes"][0]["field"], json!("metadata.resourceVersion"));
    same!(world.get(&target).await?.expect(200)?, swapped);
    Ok(())
}

async fn a_lease_is_created_by_put_whatever_version_it_names(world: &World<'_>) -> Checked {
    let lease = |name: &str, metadata: Value| {
        let mut lease =
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}});
        lease["metadata"]["name"] = json!(name);
        lease
    };
    let target = |name: &str| format!("{}/{name}", world.leases());
    world.put(&target("a"), lease("a", json!({}))).await?.expect(201)?;
    world.put(&target("b"), lease("b", json!({"resourceVersion": "3"}))).await?.expect(201)?;
    // A uid is what makes the replacement of a deleted Lease fail.
    let uid = json!({"resourceVersion": "3", "uid": "00000000-0000-4000-8000-000000000000"});
    same!(world.put(&target("c"), lease("c", uid)).await?.expect(409)?["reason"], json!("Conflict"));
    world.patch(&target("d"), json!({"spec": {}})).await?.expect(404)?;
    Ok(())
}

async fn a_write_that_changes_nothing_keeps_the_version(world: &World<'_>) -> Checked {
    let created = world.create_map("a", json!({})).await?;
    same!(version(&world.change_map("a", "1").await?), version(&created));
    same!(version(&world.put(&world.map("a"), created.clone()).await?.expect(200)?), version(&created));
    Ok(())
}

async fn a_custom_object_counts_generations(world: &World<'_>) -> Checked {
    let widget =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}});
    let created = world.post(&world.widgets(), widget.clone()).await?.expect(201)?;
    same!(created["metadata"]["generation"], json!(1));
    let target = format!("{}/w", world.widgets());
    let changed = world.patch(&target, json!({"spec": {"size": 2}})).await?.expect(200)?;
    same!(changed["metadata"]["generation"], json!(2));
    let labelled = world.patch(&target, json!({"metadata": {"labels": {"a": "b"}}})).await?.expect(200)?;
    same!(labelled["metadata"]["generation"], json!(2));
    world.put(&target, widget).await?.expect(422)?;
    Ok(())
}

async fn a_delete_has_preconditions(world: &World<'_>) -> Checked {
    let created = world.create_map("a", json!({})).await?;
    let uid = json!({"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}});
    same!(world.delete(&world.map("a"), uid).await?.expect(409)?["reason"], json!("Conflict"));
    let old = json!({"preconditions": {"resourceVersion": "1"}});
    same!(world.delete(&world.map("a"), old).await?.expect(409)?["reason"], json!("Conflict"));
    let right = json!({"preconditions": {"uid": created["metadata"]["uid"], "resourceVersion": version(&created)}});
    world.delete(&world.map("a"), right).await?.expect(200)?;
    world.delete(&world.map("a"), Value::Null).await?.expect(404)?;
    Ok(())
}

async fn finalizers_hold_an_object(world: &World<'_>) -> Checked {
    let body = json!({"metadata": {"name": "a", "finalizers": ["example.com/hold"]}});
    let created = world.post(&world.maps(), body).await?.expect(201)?;
    let marked = world.delete(&world.map("a"), Value::Null).await?.expect(200)?;
    holds!(marked["metadata"]["deletionTimestamp"].is_string(), marked);
    holds!(number(&marked) > number(&created), marked);
    world.patch(&world.map("a"), json!({"metadata": {"finalizers": null}})).await?.expect(200)?;
    world.get(&world.map("a")).await?.expect(404)?;
    let target = format!(
        "{}?watch=1&timeoutSeconds=5&fieldSelector=metadata.name%3Da&resourceVersion={}",
        world.maps(),
        version(&created)
    );
    same!(kinds(&world.watch_json(&target, 2).await?), ["MODIFIED", "DELETED"]);
    Ok(())
}

async fn objects_need_a_namespace(world: &World<'_>) -> Checked {
    let missing = "/api/v1/namespaces/no-such-namespace/configmaps";
    let status = world.post(missing, json!({"metadata": {"name": "a"}})).await?.expect(404)?;
    same!(status["details"], json!({"name": "no-such-namespace", "kind": "namespaces"}));
    same!(names(&world.get(missing).await?.expect(200)?), Vec::<String>::new());
    world.post("/api/v1/configmaps", json!({"metadata": {"name": "a"}})).await?.expect(405)?;
    let namespace = world.get(&format!("/api/v1/namespaces/{}", world.namespace)).await?.expect(200)?;
    same!(namespace["status"]["phase"], json!("Active"));
    same!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], json!(world.namespace));
    Ok(())
}

async fn discovery_comes_whole_and_in_parts(world: &World<'_>) -> Checked {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    for (root, group, plural, kind) in [
        ("/api", None, "configmaps", json!({"group": "", "version": "", "kind": "ConfigMap"})),
        ("/apis", Some("apps"), "deployments", json!({"group": "", "version": "", "kind": "Deployment"})),
        ("/apis", Some("example.com"), "widgets", json!({"group": "example.com", "version": "v1", "kind": "Widget"})),
    ] {
        let answer = world.send("GET", root, &[("accept", accept)], Value::Null).await?;
        same!(answer.content_type, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
        let list = answer.expect(200)?;
        same!(
            (list["kind"].clone(), list["apiVersion"].clone()),
            (json!("APIGroupDiscoveryList"), json!("apidiscovery.k8s.io/v2"))
        );
        let groups = list["items"].as_array().cloned().unwrap_or_default();
        let found = groups.iter().find(|item| item["metadata"]["name"].as_str() == group).ok_or(plural)?;
        let resources = found["versions"][0]["resources"].as_array().cloned().unwrap_or_default();
        let resource = resources.iter().find(|resource| resource["resource"] == plural).ok_or(plural)?;
        same!((&resource["responseKind"], &resource["scope"]), (&kind, &json!("Namespaced")));
    }
    same!(world.get("/api").await?.expect(200)?["versions"], json!(["v1"]));
    let groups = world.get("/apis").await?.expect(200)?;
    same!(groups["kind"], json!("APIGroupList"));
    let widgets = world.get("/apis/example.com/v1").await?.expect(200)?;
    same!(
        (widgets["kind"].clone(), widgets["groupVersion"].clone()),
        (json!("APIResourceList"), json!("example.com/v1"))
    );
    let widget = &widgets["resources"][0];
    same!(
        (widget["name"].clone(), widget["kind"].clone(), widget["namespaced"].clone()),
        (json!("widgets"), json!("Widget"), json!(true))
    );
    same!((widget["shortNames"].clone(), widget["singularName"].clone()), (json!(["wd"]), json!("widget")));
    same!(world.get("/apis/example.com").await?.expect(200)?["preferredVersion"]["version"], json!("v1"));
    holds!(
        world.get("/version").await?.expect(200)?["gitVersion"].as_str().is_some_and(|text| text.starts_with("v1.")),
        "/version"
    );
    Ok(())
}

async fn compacted_lists_and_pages_expire(world: &World<'_>) -> Checked {
    let old = version(&world.create_map("a", json!({})).await?);
    world.create_map("b", json!({})).await?;
    world.create_map("c", json!({})).await?;
    let select = "labelSelector=!nothing&limit=1&fieldSelector=metadata.name!%3Dkube-root-ca.crt";
    let first = world.get(&format!("{}?{select}", world.maps())).await?.expect(200)?;
    let token = first["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    world.change_map("b", "2").await?;
    (world.server.compact)().await?;
    // A server with snapshots in its cache learns of the compaction only later.
    let exact = format!("{}?resourceVersion={old}&resourceVersionMatch=Exact", world.maps());
    let status = world.until_status(&exact, 410).await?.json();
    same!((status["reason"].clone(), status["code"].clone()), (json!("Expired"), json!(410)));
    same!(status["metadata"].get("continue"), None);
    let status = world.until_status(&format!("{}?{select}&continue={token}", world.maps()), 410).await?.json();
    same!(status["reason"], json!("Expired"));
    let fresh = status["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    holds!(!fresh.is_empty() && fresh != token, fresh);
    let rest = world.get(&format!("{}?{select}&continue={fresh}", world.maps())).await?.expect(200)?;
    same!((names(&rest), rest["items"][0]["data"]["k"].clone()), (vec!["b".to_owned()], json!("2")));
    holds!(number(&rest) > number(&first), rest["metadata"]);
    // The watch window is another one: it still has what etcd has forgotten.
    let target = format!("{}?watch=1&timeoutSeconds=5&resourceVersion={old}", world.maps());
    same!(kinds(&world.watch_json(&target, 1).await?), ["ADDED"]);
    Ok(())
}

async fn a_restarted_server_refuses_old_watches(world: &World<'_>) -> Checked {
    let old = version(&world.create_map("a", json!({})).await?);
    let newer = version(&world.change_map("a", "2").await?);
    (world.server.restart)().await?;
    world.until_status(&world.map("a"), 200).await?;
    let target = |start: &str| format!("{}?watch=1&timeoutSeconds=5&resourceVersion={start}", world.maps());
    let events = world.watch_json(&target(&old), usize::MAX).await?;
    same!(kinds(&events), ["ERROR"]);
    let status = &events[0]["object"];
    same!(
        (status["kind"].clone(), status["code"].clone(), status["reason"].clone()),
        (json!("Status"), json!(410), json!("Expired"))
    );
    // The state itself is readable, and a watch from now on works.
    let list = world
        .get(&format!("{}?resourceVersion={newer}&resourceVersionMatch=NotOlderThan", world.maps()))
        .await?
        .expect(200)?;
    let changed = world.change_map("a", "3").await?;
    let events = world.watch_json(&target(&version(&list)), 1).await?;
    same!(events.first().map(|event| version(&event["object"])), Some(version(&changed)));
    Ok(())
}
