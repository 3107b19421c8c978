//! `AdminService`: the status of the replica, and an orderly way to give leadership up.

use std::time::Duration;

use sidewatch_core::status::{FeedStatus, Status as ReplicaStatus, SubscriptionStatus};
use sidewatch_core::time::WallTime;
use tonic::{Request, Response, Status};

use crate::delivery::Delivery;
use crate::grpc::frames::{
    Identity, duration, feed_info, feed_status, hold, leadership, position, text, timestamp, version,
};
use crate::grpc::observe::{Observation, Observer};
use crate::grpc::pb;
use crate::grpc::pb::admin_service_server::AdminService;
use crate::grpc::status::{Reason, Refusal};
use crate::grpc::{open, status};

/// Longest `cooldown` and `drain_timeout` of a StepDown: nothing but a restart ends them, so that a slip of the finger
/// would leave an application without a leader.
const STEP_DOWN_MAX: Duration = Duration::from_secs(3600);

/// Serves `AdminService`.
#[derive(Debug)]
pub struct Admin {
    delivery: Delivery,
    identity: Identity,
    observer: Observer,
}

impl Admin {
    /// The service over this seam.
    pub fn new(delivery: Delivery, identity: Identity, observer: Observer) -> Self {
        Self { delivery, identity, observer }
    }

    async fn status(&self) -> Result<pb::GetStatusResponse, Status> {
        let replica = self.delivery.status().await.map_err(|_| status::shutting_down())?;
        Ok(self.message(replica))
    }

    fn message(&self, replica: ReplicaStatus) -> pb::GetStatusResponse {
        let now = self.delivery.now();
        pb::GetStatusResponse {
            leadership: Some(leadership(&replica.role, &replica.lease, now.boot)),
            feeds: replica.feeds.into_iter().map(feed_detail).collect(),
            subscriptions: replica.subscriptions.into_iter().map(subscription_detail).collect(),
            server_identity: self.identity.name.to_string(),
            server_version: self.identity.version.to_owned(),
            start_time: Some(timestamp(self.identity.started)),
            journal_bytes: replica.journal_bytes as u64,
            journal_limit_bytes: replica.journal_bytes_max as u64,
            cache_bytes: replica.cache_bytes as u64,
            checkpoint_time: replica.checkpoint_age.map(|age| timestamp(ago(now.wall, age))),
        }
    }

    async fn give_up(&self, request: pb::StepDownRequest) -> Result<pb::StepDownResponse, Status> {
        let cooldown = at_most(STEP_DOWN_MAX, "cooldown", request.cooldown)?;
        let drain_timeout = at_most(STEP_DOWN_MAX, "drain_timeout", request.drain_timeout)?;
        let cooldown = (!cooldown.is_zero()).then_some(cooldown);
        let answer = self.delivery.step_down(cooldown, drain_timeout).await.map_err(|_| status::shutting_down())?;
        let epoch = answer.map_err(|error| status::not_leading(&error))?;
        Ok(pb::StepDownResponse { epoch: epoch.as_u64() })
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn get_status(
        &self,
        _request: Request<pb::GetStatusRequest>,
    ) -> Result<Response<pb::GetStatusResponse>, Status> {
        let answer = self.status().await;
        self.observer.observe(Observation::call_ended("GetStatus", &answer));
        answer.map(Response::new)
    }

    async fn step_down(&self, request: Request<pb::StepDownRequest>) -> Result<Response<pb::StepDownResponse>, Status> {
        let answer = self.give_up(request.into_inner()).await;
        self.observer.observe(Observation::call_ended("StepDown", &answer));
        answer.map(Response::new)
    }
}

fn feed_detail(feed: FeedStatus) -> pb::FeedDetail {
    pb::FeedDetail {
        info: Some(feed_info(&feed.description)),
        status: Some(feed_status(feed.news)),
        object_count: feed.object_count,
        resource_version: version(feed.head.as_ref()),
        journal_floor: version(feed.journal_floor.as_ref()),
        relist_count: feed.relists,
        synthesized_delete_count: feed.synthesized_deletes,
        gap_count: feed.gaps,
    }
}

fn subscription_detail(subscription: SubscriptionStatus) -> pb::SubscriptionDetail {
    pb::SubscriptionDetail {
        name: text(subscription.name.as_ref()),
        acked_cursor: position(&subscription.acked),
        durable_cursor: position(&subscription.durable),
        attached: subscription.session.is_some(),
        session_id: subscription.session.unwrap_or_default(),
        unacked_events: subscription.unacked_events,
        pending_events: subscription.pending_events,
        oldest_unacked_age: subscription.oldest_unacked_age.map(duration),
        hold: hold(subscription.hold).into(),
    }
}

fn at_most(max: Duration, field: &'static str, given: Option<prost_types::Duration>) -> Result<Duration, Refusal> {
    let duration = open::duration(field, given)?;
    if duration > max {
        let rule = format!("must be at most {max:?}");
        return Err(Refusal::new(Reason::FieldInvalid, field, &format!("{duration:?}"), rule));
    }
    Ok(duration)
}

/// The wall time `age` before `now`.
fn ago(now: WallTime, age: Duration) -> WallTime {
    WallTime::from_micros(now.as_micros().saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX)))
}
