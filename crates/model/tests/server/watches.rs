//! Watches: restarts, rewinds, slow readers, large beginnings, types that go.

use serde_json::json;
use sidewatch_model::request::{Method, Request};
use sidewatch_model::server::{Options, StreamingList};
use sidewatch_model::watch::LINES_PER_POLL_MAX;

use crate::support::{MAPS, WALL, World};

#[test]
fn a_restart_ends_watches_and_empties_the_window() {
    let mut world = World::new();
    let old = world.create("a");
    let newest = world.change("a", 1);
    let running = world.watch(&format!("{MAPS}?watch=1&resourceVersion={newest}"));
    world.server.restart(world.now);
    assert_eq!(world.poll(running), (vec![], true));
    let id = world.watch(&format!("{MAPS}?watch=1&resourceVersion={old}"));
    assert_eq!(world.poll(id), (vec!["ERROR 410".to_owned()], true));
    let id = world.watch(&format!("{MAPS}?watch=1&resourceVersion={newest}"));
    let next = world.change("a", 2);
    assert_eq!(world.poll(id), (vec![format!("MODIFIED a@{next}")], false));
}

#[test]
fn a_rewind_uses_revisions_again_and_old_watches_stay_silent() {
    let mut world = World::new();
    let backup = world.create("a");
    let lost = world.create("b");
    world.server.rewind_to(world.now, backup).unwrap();
    assert_eq!(world.get(&format!("{MAPS}/b")).0, 404);
    // A client that resumes from before the restore is accepted and misses what happens up to there.
    let id = world.watch(&format!("{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={lost}"));
    assert_eq!(world.create("c"), lost);
    assert_eq!(world.at(60).poll(id), (vec![], false));
    let next = world.create("d");
    assert_eq!(world.poll(id).0, [format!("ADDED d@{next}")]);
    world.server.compact(next);
    assert!(world.server.rewind_to(world.now, backup).is_err());
}

#[test]
fn a_rewind_before_a_definition_takes_the_type_back() {
    let mut world = World::with(Options::default());
    let before = world.server.revision();
    let definition = sidewatch_model::resource::widget_definition();
    world.server.create(world.now, WALL, "customresourcedefinitions", "", definition).unwrap();
    let after = world.server.revision();
    assert_eq!(world.get("/apis/example.com/v1/widgets").0, 200);
    assert_eq!(after - before, 2, "a creation and its acceptance");
    world.server.rewind_to(world.now, before).unwrap();
    assert_eq!(world.get("/apis/example.com/v1/widgets").0, 404);
}

#[test]
fn a_deleted_definition_takes_its_objects_and_watches_along() {
    let mut world = World::new();
    let widget = json!({"metadata": {"name": "w"}});
    world.server.create(world.now, WALL, "widgets", "default", widget).unwrap();
    let id = world.watch("/apis/example.com/v1/widgets?watch=1");
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    assert_eq!(world.send(Method::Delete, path, json!({})).0, 200);
    assert_eq!(world.poll(id), (vec![], true));
    assert_eq!(world.get("/apis/example.com/v1/widgets").0, 404);
    assert!(!world.get("/apis").1.to_string().contains("example.com"));
}

#[test]
fn a_reader_that_the_ring_overtakes_is_cut_off() {
    let mut world = World::new();
    world.create("a");
    let id = world.watch(&format!("{MAPS}?watch=1&resourceVersion={}", world.server.revision()));
    for value in 1..=250 {
        // Each event is old when the next one comes, so the ring stays at 100.
        world.at(value * 80).server.watches_len();
        world.change("a", value);
    }
    assert_eq!(world.poll(id), (vec![], true));
}

#[test]
fn a_large_beginning_comes_in_several_polls() {
    let mut world = World::new();
    (0..LINES_PER_POLL_MAX + 5).for_each(|index| {
        world.create(&format!("m{index}"));
    });
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let id = world.watch(&format!("{MAPS}?{query}"));
    let revision = world.server.revision();
    assert_eq!(world.poll(id).0.len(), LINES_PER_POLL_MAX);
    assert_eq!(world.server.next_wake(id, world.now), world.now);
    let late = world.create("late");
    let (rest, _) = world.poll(id);
    assert_eq!(rest.len(), 7);
    assert_eq!(rest[5..], [format!("BOOKMARK @{revision}"), format!("ADDED late@{late}")]);
}

#[test]
fn servers_without_the_streaming_list_refuse_or_ignore_it() {
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut refusing = World::with(Options { streaming_list: StreamingList::Refused, ..Options::default() });
    assert_eq!(refusing.get(&format!("{MAPS}?{query}")).0, 422);
    let mut old = World::with(Options { streaming_list: StreamingList::Unknown, ..Options::default() });
    let revision = old.create("a");
    let id = old.watch(&format!("{MAPS}?{query}"));
    assert_eq!(old.poll(id).0, [format!("ADDED a@{revision}")], "the end bookmark never comes");
}

#[test]
fn a_selector_shows_the_deletion_of_what_it_showed() {
    let mut world = World::new();
    let start = world.create_with("a", json!({"x": "1"}));
    world.create_with("b", json!({"x": "2"}));
    world.delete("b");
    let end = world.delete("a");
    let id = world.watch(&format!("{MAPS}?watch=1&labelSelector=x%3D1&resourceVersion={}", start - 1));
    assert_eq!(world.poll(id).0, [format!("ADDED a@{start}"), format!("DELETED a@{end}")]);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let run = |seed: u64| {
        let mut world = World::with(Options { seed, ..Options::default() });
        let body = json!({"metadata": {"generateName": "a-"}}).to_string();
        world.ask(&Request::new(Method::Post, MAPS).with_body(body)).1
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1)["metadata"]["uid"], run(2)["metadata"]["uid"]);
}

#[test]
fn a_streaming_list_of_the_future_fails_and_a_plain_watch_waits() {
    let mut world = World::new();
    let future = world.server.revision() + 2;
    let streaming = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let id = world.watch(&format!("{MAPS}?watch=1&{streaming}&resourceVersion={future}"));
    assert_eq!(world.poll(id), (vec!["ERROR 504".to_owned()], true));
    let id = world.watch(&format!("{MAPS}?watch=1&resourceVersion={future}"));
    ["a", "b", "c"].into_iter().for_each(|name| {
        world.create(name);
    });
    assert_eq!(world.poll(id), (vec![format!("ADDED c@{}", future + 1)], false));
}

#[test]
fn a_streaming_list_without_bookmarks_has_no_end_mark() {
    let mut world = World::new();
    let revision = world.create("a");
    let id = world.watch(&format!("{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"));
    assert_eq!(world.poll(id), (vec![format!("ADDED a@{revision}")], false));
}
