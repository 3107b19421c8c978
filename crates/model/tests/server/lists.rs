//! Lists that the conformance list cannot make: stale servers, many pages, the order of etcd.

use sidewatch_model::request::Request;
use sidewatch_model::server::Options;

use crate::support::{MAPS, World, names};

#[test]
fn a_stale_answer_is_the_state_of_so_many_revisions_ago() {
    let mut world = World::new();
    let old = world.create("a");
    world.delete("a");
    let request = Request { staleness: 1, ..Request::get(MAPS) };
    let (_, list) = world.ask(&request);
    assert_eq!(
        (names(&list), list["metadata"]["resourceVersion"].as_str().unwrap()),
        (vec!["a"], old.to_string().as_str())
    );
    let (status, _) = world.ask(&Request { staleness: 1, ..Request::get(&format!("{MAPS}/a")) });
    assert_eq!((status, world.get(&format!("{MAPS}/a")).0), (200, 404));
    // What the client has seen already still binds the answer.
    let target = format!("{MAPS}?resourceVersion={}&resourceVersionMatch=NotOlderThan", old + 1);
    assert_eq!(names(&world.ask(&Request { staleness: 1, ..Request::get(&target) }).1), Vec::<&str>::new());
}

#[test]
fn every_page_counts_what_is_left() {
    let mut world = World::new();
    (0..7).for_each(|index| {
        world.create(&format!("m{index}"));
    });
    let (mut target, mut left, mut seen) = (format!("{MAPS}?limit=3"), Vec::new(), 0);
    loop {
        let (_, page) = world.get(&target);
        seen += names(&page).len();
        left.push(page["metadata"]["remainingItemCount"].as_u64());
        let Some(token) = page["metadata"]["continue"].as_str() else { break };
        target = format!("{MAPS}?limit=3&continue={token}");
    }
    assert_eq!((seen, left), (7, vec![Some(4), Some(1), None]));
}

#[test]
fn a_fresh_token_goes_on_at_the_newest_state() {
    let mut world = World::new();
    for name in ["a", "b", "c"] {
        world.create(name);
    }
    let (_, first) = world.get(&format!("{MAPS}?limit=1"));
    world.delete("b");
    world.server.compact(world.server.revision());
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (status, expired) = world.get(&format!("{MAPS}?limit=1&continue={token}"));
    assert_eq!(status, 410);
    let (status, rest) =
        world.get(&format!("{MAPS}?limit=1&continue={}", expired["metadata"]["continue"].as_str().unwrap()));
    assert_eq!((status, names(&rest)), (200, vec!["c"]));
}

#[test]
fn objects_come_in_the_byte_order_of_their_keys() {
    let options = Options { namespaces: vec!["n".to_owned(), "n-x".to_owned()], ..Options::default() };
    let mut world = World::with(options);
    for namespace in ["n", "n-x"] {
        let object = serde_json::json!({"metadata": {"name": format!("in-{namespace}")}});
        world.server.create(world.now, 0, "configmaps", namespace, object).unwrap();
    }
    // '-' sorts before '/', so the longer namespace comes first, as in etcd.
    assert_eq!(names(&world.get("/api/v1/configmaps").1), ["in-n-x", "in-n"]);
}

#[test]
fn a_large_population_is_listed_in_pages() {
    let mut world = World::new();
    (0..20_000).for_each(|index| {
        world.create(&format!("m{index:05}"));
    });
    let (mut target, mut seen) = ("/api/v1/configmaps?limit=500".to_owned(), 0);
    loop {
        let (_, page) = world.get(&target);
        seen += names(&page).len();
        let Some(token) = page["metadata"]["continue"].as_str() else { break };
        target = format!("/api/v1/configmaps?limit=500&continue={token}");
    }
    assert_eq!(seen, 20_000);
}

#[test]
fn a_limit_binds_to_the_exact_version_and_version_zero_ignores_it() {
    let mut world = World::new();
    let old = world.create("a");
    world.create("b");
    assert_eq!(names(&world.get(&format!("{MAPS}?limit=9&resourceVersion={old}")).1), ["a"]);
    assert_eq!(names(&world.get(&format!("{MAPS}?resourceVersion={old}")).1), ["a", "b"]);
    assert_eq!(names(&world.get(&format!("{MAPS}?limit=1&resourceVersion=0")).1), ["a", "b"]);
}
