//! From a name to a resource, and back when the resource is gone (D.2, rows Resolving and NotServed; Rule 7).

use std::mem;

use crate::codec::status::{Failure, FailureKind};
use crate::feed::listing::{Goal, Listing};
use crate::feed::{Condition, DeleteReason, Effect, Feed, Phase, Plan, ResourceInfo, TypeAnswer, relist, sent};
use crate::limits::TYPE_ABSENT_CONFIRMATION;
use crate::time::BootInstant;

impl Feed {
    /// Takes discovery's answer and says what follows from it.
    pub(super) fn resolved(&mut self, now: BootInstant, info: ResourceInfo, effects: &mut Vec<Effect>) -> Plan {
        let same = |known: &ResourceInfo| ResourceInfo { streaming_list: info.streaming_list, ..known.clone() } == info;
        let changed = self.info.as_ref().is_some_and(|known| !same(known));
        self.streaming = info.streaming_list;
        self.info = Some(info);
        self.absent_since = None;
        self.last_heard = Some(now);
        match (&self.head, &self.recover_from) {
            // Bodies and versions of another type, or of another version of it, mean nothing here.
            (Some(_), _) if changed => Plan::List(Listing::new(Goal::Reset)),
            (Some(_), _) => Plan::Watch,
            (None, from) => {
                let goal = from.clone().map_or(Goal::First, Goal::Recover);
                self.move_to(Condition::Syncing, "the type is served", effects);
                Plan::List(Listing::new(goal))
            }
        }
    }

    pub(super) fn on_resolve_failed(
        &mut self,
        now: BootInstant,
        failure: &Failure,
        effects: &mut Vec<Effect>,
    ) -> Phase {
        let gone = failure.kind == FailureKind::NotFound;
        if !gone {
            self.absent_since = None;
        }
        if gone && self.info.is_some() && self.head.is_some() {
            self.failing = None;
            self.move_to(Condition::NotServed, &failure.message, effects);
            let request = self.request();
            effects.push(Effect::AskType { request });
            return Phase::Asking(sent(now, request));
        }
        self.wait(now, failure, Plan::Resolve, effects)
    }

    /// Rule 7. Only two answers, the confirmation time apart and without a contrary one between, are believed.
    pub(super) fn on_type_answer(&mut self, now: BootInstant, answer: TypeAnswer, effects: &mut Vec<Effect>) {
        match answer {
            TypeAnswer::Present | TypeAnswer::Unknown => self.absent_since = None,
            TypeAnswer::Absent => {
                let since = *self.absent_since.get_or_insert(now);
                if now.since(since) >= TYPE_ABSENT_CONFIRMATION {
                    let gone = mem::take(&mut self.cache);
                    let changes = gone.iter().map(|o| relist::deleted(o, DeleteReason::TypeRemoved)).collect();
                    effects.push(Effect::TypeRemoved { changes });
                    self.head = None;
                    self.info = None;
                    self.absent_since = None;
                    self.drop_probe(|feed| feed.rewind.take(), effects);
                }
            }
        }
    }
}
