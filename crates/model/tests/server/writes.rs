//! Writes beyond the conformance list: grace, namespaces, status, collections, lost updates.

use serde_json::{Value, json};
use sidewatch_model::request::Method;

use crate::support::{MAPS, WALL, World, names};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(world: &mut World, specification: Value) -> Value {
    let body = json!({"metadata": {"name": "p"}, "spec": specification, "status": {"phase": "Running"}});
    let (status, pod) = world.send(Method::Post, PODS, body);
    assert_eq!(status, 201);
    pod
}

#[test]
fn the_main_path_ignores_the_status_and_the_status_path_all_else() {
    let mut world = World::new();
    let created = pod(&mut world, json!({"nodeName": "n"}));
    assert_eq!(created["status"]["phase"], "Pending");
    let patch = json!({"spec": {"nodeName": "other"}, "status": {"phase": "Running"}});
    let (_, after) = world.send(Method::Patch, &format!("{PODS}/p/status"), patch.clone());
    assert_eq!((&after["spec"]["nodeName"], &after["status"]["phase"]), (&json!("n"), &json!("Running")));
    assert_eq!(after["metadata"]["generation"], 1);
    assert_eq!(after["metadata"]["managedFields"][1]["subresource"], "status");
    let (_, after) = world.send(
        Method::Patch,
        &format!("{PODS}/p"),
        json!({"spec": {"nodeName": "m"}, "status": {"phase": "Failed"}}),
    );
    assert_eq!((&after["spec"]["nodeName"], &after["status"]["phase"]), (&json!("m"), &json!("Running")));
    assert_eq!(after["metadata"]["generation"], 2);
    assert_eq!(world.get(&format!("{MAPS}/a/status")).0, 404);
}

#[test]
fn a_bound_pod_is_marked_first_and_gone_without_grace() {
    let mut world = World::new();
    let created = pod(&mut world, json!({"nodeName": "n"}));
    let (_, marked) = world.send(Method::Delete, &format!("{PODS}/p"), json!({}));
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_ne!(marked["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    let (_, again) = world.send(Method::Delete, &format!("{PODS}/p"), json!({}));
    assert_eq!(again["metadata"]["resourceVersion"], marked["metadata"]["resourceVersion"]);
    let (_, last) = world.send(Method::Delete, &format!("{PODS}/p"), json!({"gracePeriodSeconds": 0}));
    assert_eq!((last["kind"].as_str(), world.get(&format!("{PODS}/p")).0), (Some("Pod"), 404));
}

#[test]
fn an_unbound_pod_goes_at_once() {
    let mut world = World::new();
    pod(&mut world, json!({}));
    world.send(Method::Delete, &format!("{PODS}/p"), json!({}));
    assert_eq!(world.get(&format!("{PODS}/p")).0, 404);
}

#[test]
fn a_namespace_takes_its_objects_along_one_revision_each() {
    let mut world = World::new();
    world.create("a");
    world.create("b");
    let before = world.server.revision();
    let id = world.watch(&format!("/api/v1/configmaps?watch=1&resourceVersion={before}"));
    world.server.delete(world.now, WALL, "namespaces", ("", "default")).unwrap();
    assert_eq!(world.poll(id).0, [format!("DELETED a@{}", before + 1), format!("DELETED b@{}", before + 2)]);
    assert_eq!((world.server.revision(), world.get("/api/v1/namespaces/default").0), (before + 3, 404));
    assert_eq!(world.send(Method::Post, MAPS, json!({"metadata": {"name": "c"}})).0, 404);
}

#[test]
fn a_collection_is_deleted_by_selector() {
    let mut world = World::new();
    world.create_with("a", json!({"x": "1"}));
    world.create("b");
    let (status, gone) = world.send(Method::Delete, &format!("{MAPS}?labelSelector=x"), json!({}));
    assert_eq!((status, names(&gone)), (200, vec!["a"]));
    assert_eq!(names(&world.get(MAPS).1), ["b"]);
}

#[test]
fn only_one_of_two_writers_wins() {
    let mut world = World::new();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let (_, lease) =
        world.send(Method::Post, leases, json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": ""}}));
    let mut claim = |holder: &str| {
        let mut lease = lease.clone();
        lease["spec"]["holderIdentity"] = json!(holder);
        world.send(Method::Put, &format!("{leases}/l"), lease).0
    };
    assert_eq!((claim("a"), claim("b")), (200, 409));
}

#[test]
fn a_deleted_and_recreated_object_has_another_uid() {
    let mut world = World::new();
    world.create("a");
    let first = world.server.state("configmaps", "default", "a").unwrap().uid.clone();
    world.delete("a");
    world.create("a");
    assert_ne!(world.server.state("configmaps", "default", "a").unwrap().uid, first);
    let replaced = json!({"metadata": {"name": "a", "uid": first}});
    assert_eq!(world.send(Method::Put, &format!("{MAPS}/a"), replaced).0, 409);
}

#[test]
fn a_write_that_changes_nothing_makes_no_revision() {
    let mut world = World::new();
    let revision = world.create("a");
    assert_eq!((world.change("a", 0), world.server.revision()), (revision, revision));
    assert_eq!(world.change("a", 1), revision + 1);
}
