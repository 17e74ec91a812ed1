//! Attributes a nest that ended to a sandbox.
//!
//! Used by `activities.rs` and `restarts.rs`. A nest belongs to the sandbox of its keys. Without a known key it belongs
//! to the only sandbox that is being worked on, if there is only one. Otherwise it waits until one of its keys gets an
//! owner, or until the creation during which it began ends: then the likeliest sandbox gets it, marked ambiguous. A
//! nest that no sandbox gets shows in metrics only.
//!
//! The order of evidence, strongest first:
//! 1. A key of the nest has an owner. The nest's other keys get the same owner.
//! 2. Only one sandbox is being worked on, and for HNS a plugin of it ran at the begin of the nest.
//! 3. A key gets an owner within two minutes.
//! 4. A trace closes that the nest began in: the likeliest of several, marked ambiguous.
//!
//! A nest that names a container is attributed by 1 or 3 only: the id would contradict a guess.

use sandglass_model::Timestamp;

use crate::context::Context;
use crate::windows::nest::{MAX_WAITING, Nest, WAIT_NS, endpoint_changes};
use crate::windows::objects::Objects;

impl Objects {
    /// Attributes the nest, or lets it wait. Nests that waited in vain are removed quietly; those that had to make room
    /// are counted as evicted.
    pub(super) fn nest_ended(&mut self, ctx: &mut Context, at: Timestamp, nest: Nest) {
        if nest.activities.is_empty() {
            return;
        }
        // Endpoints are counted whether or not their sandbox is known.
        for (endpoint, made) in endpoint_changes(&nest.activities) {
            self.count_endpoint(ctx, &endpoint, made);
        }
        if let Some(number) = self.keys.owner_of(&nest.keys) {
            self.place_and_learn(ctx, at, nest, number);
            return;
        }
        if !nest.names_container()
            && let Some(key) = self.only_one_for(ctx, &nest)
        {
            // The only candidate: its other keys are attributed too, so that later nests need no guess.
            if let Some(number) = self.number_of_trace(ctx, key) {
                self.note_attach(&nest, number);
                for key in nest.keys.clone() {
                    self.learn(ctx, at, number, key);
                }
            }
            return self.place_nest(ctx, nest, key, false);
        }
        while let Some(oldest) = self.nests.waiting.front()
            && (self.nests.waiting.len() >= MAX_WAITING || oldest.end.plus(WAIT_NS) < at)
        {
            ctx.effects.counters.evicted_windows += u64::from(oldest.end.plus(WAIT_NS) >= at);
            self.nests.waiting.pop_front();
        }
        self.nests.waiting.push_back(nest);
    }

    /// The nest belongs to this sandbox, and so do its keys.
    pub(super) fn place_and_learn(&mut self, ctx: &mut Context, at: Timestamp, nest: Nest, number: u64) {
        let keys = nest.keys.clone();
        self.place_for(ctx, nest, number);
        for key in keys {
            self.learn(ctx, at, number, key);
        }
    }
}
