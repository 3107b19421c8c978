//! The Lease of the API server as the driver's service.

use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use sidewatch_core::codec::lease::{LeaseEvent, LeaseRecord};
use sidewatch_core::codec::status::Failure;
use sidewatch_core::resource_version::ResourceVersion;

use crate::apiserver::lease::{LeaseApi, LeaseWatch};
use crate::driver::elector::LeaseService;

impl LeaseService for LeaseApi {
    fn get(&self, timeout: Duration) -> BoxFuture<'static, Result<Option<LeaseRecord>, Failure>> {
        let api = self.clone();
        Box::pin(async move { api.get(timeout).await })
    }

    fn put(&self, record: LeaseRecord, timeout: Duration) -> BoxFuture<'static, Result<LeaseRecord, Failure>> {
        let api = self.clone();
        Box::pin(async move { api.put(&record, timeout).await })
    }

    fn create(&self, record: LeaseRecord, timeout: Duration) -> BoxFuture<'static, Result<LeaseRecord, Failure>> {
        let api = self.clone();
        Box::pin(async move { api.create(&record, timeout).await })
    }

    fn watch(&self, after: Option<ResourceVersion>) -> BoxStream<'static, Result<LeaseEvent, Failure>> {
        let api = self.clone();
        let opening = async move { api.watch(after.as_ref()).await };
        stream::once(opening)
            .flat_map(|opened| match opened {
                Ok(watch) => stream::unfold(watch, next_event).boxed(),
                Err(failure) => stream::iter([Err(failure)]).boxed(),
            })
            .boxed()
    }
}

async fn next_event(mut watch: LeaseWatch) -> Option<(Result<LeaseEvent, Failure>, LeaseWatch)> {
    let event = watch.next().await.transpose()?;
    Some((event, watch))
}
