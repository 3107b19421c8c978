//! What depends on time: bookmarks, the end of watches, compaction by the clock, the watch window.

use std::time::Duration;

use sidewatch_model::server::Options;

use crate::support::{MAPS, World};

#[test]
fn bookmarks_come_every_minute_and_before_the_end() {
    let mut world = World::new();
    world.create("a");
    let id = world.watch(&format!(
        "{MAPS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=100&resourceVersion={}",
        world.server.revision()
    ));
    let revision = world.at(1).create("b");
    assert_eq!(world.poll(id).0, [format!("ADDED b@{revision}")]);
    assert_eq!(world.server.next_wake(id, world.now), Duration::from_secs(60));
    assert_eq!(world.at(59).poll(id).0, Vec::<String>::new());
    assert_eq!(world.at(60).poll(id).0, [format!("BOOKMARK @{revision}")]);
    assert_eq!(world.server.next_wake(id, world.now), Duration::from_secs(98));
    assert_eq!(world.at(98).poll(id), (vec![format!("BOOKMARK @{revision}")], false));
    assert_eq!(world.at(100).poll(id), (vec![], true));
    assert_eq!(world.server.watches_len(), 0);
}

#[test]
fn a_bookmark_that_says_nothing_new_is_not_sent() {
    let mut world = World::new();
    let revision = world.create("a");
    let id = world.watch(&format!("{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={}", revision - 1));
    assert_eq!(world.poll(id).0, [format!("ADDED a@{revision}")]);
    assert_eq!(world.at(60).poll(id).0, Vec::<String>::new());
    let revision = world.change("a", 1);
    assert_eq!(world.at(120).poll(id).0, [format!("MODIFIED a@{revision}"), format!("BOOKMARK @{revision}")]);
}

#[test]
fn a_watch_without_timeout_lives_half_an_hour_to_an_hour() {
    let mut world = World::new();
    for _ in 0..20 {
        let id = world.watch(&format!("{MAPS}?watch=1"));
        let end = world.server.next_wake(id, world.now).as_secs();
        assert!((1800..3600).contains(&end), "{end}");
    }
}

#[test]
fn compaction_reaches_the_revision_of_one_interval_ago() {
    let mut world = World::new();
    let before = world.create("a");
    let during = world.at(301).create("b");
    assert_eq!(world.server.compacted(), 100, "the first tick compacts to the start");
    let exact = |version: u64| format!("{MAPS}?resourceVersionMatch=Exact&resourceVersion={version}");
    assert_eq!(world.at(599).get(&exact(before - 1)).0, 200);
    assert_eq!(world.at(601).get(&exact(before - 1)).0, 410);
    assert_eq!(world.get(&exact(before)).0, 200);
    assert_eq!(world.at(901).get(&exact(before)).0, 410);
    assert_eq!(world.get(&exact(during)).0, 200);
}

#[test]
fn the_window_is_as_old_as_the_churn_allows() {
    let mut world = World::with(Options { compaction_interval: None, ..Options::default() });
    let start = world.create("a");
    (1..=99).for_each(|value| {
        world.change("a", value);
    });
    let target = |version: u64| format!("{MAPS}?watch=1&resourceVersion={version}");
    let id = world.watch(&target(start - 1));
    assert_eq!(world.poll(id).0.len(), 100);
    // The ring is full of events older than 75 s: the next one pushes the oldest out.
    world.at(76).change("a", 100);
    let id = world.watch(&target(start - 1));
    assert_eq!(world.poll(id), (vec!["ERROR 410".to_owned()], true));
    let id = world.watch(&target(start));
    assert_eq!(world.poll(id).0.len(), 100);
}
