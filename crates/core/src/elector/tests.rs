//! Golden scripts, one per row of D.1 and per Lease row of the failure catalogue, and a property over random schedules.

mod schedule;
mod script;
mod store;

/// Each name is a file in `testdata/elector`: commands on the left margin, what they cause below them.
/// `UPDATE_EXPECT=1` rewrites the answers.
macro_rules! scripts {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                let text = include_str!(concat!("../../testdata/elector/", stringify!($name), ".txt"));
                let path = concat!("../../testdata/elector/", stringify!($name), ".txt");
                expect_test::expect_file![path].assert_eq(&script::run(text));
            }
        )+
    };
}

scripts!(
    follower_restarts_its_wait_at_each_change,
    follower_acquires_an_expired_lease,
    follower_acquires_a_released_lease,
    follower_creates_an_absent_lease,
    follower_never_leads_on_a_lease_it_only_read,
    follower_reads_while_its_watch_fails,
    acquiring_conflict_reads_again,
    acquiring_applied_but_unanswered,
    acquiring_applied_late,
    leading_renews_and_stores_checkpoints,
    leading_conflict_still_me,
    leading_reads_another_holder,
    leading_uid_changed,
    leading_preferred_holder,
    leading_ignores_a_lagging_watch,
    suspended_resumes_in_the_same_epoch,
    suspended_then_lost,
    releasing_step_down,
    releasing_shutdown_while_acquiring,
    releasing_never_clears_another_holder,
    releasing_gives_up,
    e13_etcd_restored_for_the_leader,
    e13_etcd_restored_for_a_follower,
    e21_restarted_container_takes_over_at_once,
    e22_leader_killed,
    e23_leader_drained,
    e24_leader_partitioned,
    e25_renewal_applied_response_lost,
    e26_slow_renewals,
    e27_process_frozen,
    e28_wall_clock_steps,
    e29_lease_deleted,
    e30_lease_edited,
    e30_lease_edited_seen_by_a_candidate,
);
