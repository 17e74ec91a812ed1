//! Attributes keys to sandboxes: keys that one event names together belong to one sandbox.
//!
//! Used by every handler of this room. Attribution spreads: a key that gets an owner passes it to the pairs and to the
//! nests that wait for it. Each step either gives a key its first owner or does nothing, so that the spreading ends.
//! Does not: guess; a key keeps the first owner that it got until its sandbox is forgotten.
//!
//! Example: HNS logs an endpoint together with its port, before the sandbox has either. The pair waits. The shim then
//! names the endpoint together with the sandbox's namespace, which has an owner: the endpoint gets it, by the pair the
//! port gets it, and activities that named the port are placed.

use sandglass_model::Timestamp;
use sandglass_model::network::ConnectStep;
use sandglass_model::windows::ObjectKey;

use crate::context::Context;
use crate::facts::Fact;
use crate::windows::keys::identifies_sandbox;
use crate::windows::objects::Objects;

impl Objects {
    /// The keys belong to one object, or to objects of one sandbox. Without an owner they wait in pairs, at most 1,024
    /// of them; what the bound evicts is counted as evicted.
    pub(super) fn join_keys(&mut self, ctx: &mut Context, at: Timestamp, keys: &[ObjectKey]) {
        match self.keys.owner_of(keys) {
            Some(number) => {
                for key in keys {
                    self.learn(ctx, at, number, key.clone());
                }
            }
            None => {
                // Neighbours are enough: attribution spreads along the chain of pairs.
                for (one, other) in keys.iter().zip(keys.iter().skip(1)) {
                    if identifies_sandbox(one) && identifies_sandbox(other) {
                        let pair = (one.clone(), other.clone());
                        ctx.effects.counters.evicted_windows += self.keys.pairs.insert(pair.clone(), (), at);
                        let keys = &mut self.keys;
                        // The order of insertion is kept beside the map, which has none: pairs must spread alike in a replay.
                        keys.waiting
                            .retain(|waiting| *waiting != pair && keys.pairs.get(waiting).is_some());
                        keys.waiting.push(pair);
                    }
                }
            }
        }
    }

    /// Attributes a key to this sandbox, and everything that waits for the key.
    pub(super) fn learn(&mut self, ctx: &mut Context, at: Timestamp, number: u64, key: ObjectKey) {
        // A list in place of recursion: the depth would be the length of a chain of pairs.
        let mut learnt = vec![key];
        while let Some(key) = learnt.pop() {
            // The first owner stays: a later contradiction is more likely a reused number.
            if !identifies_sandbox(&key) || self.keys.owner(&key).is_some() || self.sandboxes.get(number).is_none() {
                continue;
            }
            // A sandbox with too many keys gets no further ones; another one must not lose its keys for it.
            let Some(forgotten) = self.keys.enter(&key, number, at) else {
                ctx.effects.counters.evicted_windows += 1;
                continue;
            };
            ctx.effects.counters.evicted_windows += forgotten;
            self.note_key(ctx, number, &key);
            let keys = &mut self.keys;
            let pairs = &mut keys.pairs;
            keys.waiting.retain(|pair| {
                let other = match pair {
                    (one, other) if *one == key => other,
                    (other, one) if *one == key => other,
                    _ => return true,
                };
                learnt.push(other.clone());
                pairs.remove(pair);
                false
            });
            learnt.extend(self.place_waiting(ctx, &key, number));
        }
    }

    /// Takes over what a key says besides its owner: namespace and endpoint for the spans, compartment and silo for the
    /// attribution of traffic.
    pub(super) fn note_key(&mut self, ctx: &mut Context, number: u64, key: &ObjectKey) {
        let Some(sandbox) = self.sandboxes.get_mut(number) else {
            return;
        };
        let trace = sandbox.trace;
        let mut known = false;
        match key {
            ObjectKey::Namespace(id) => {
                if sandbox.namespace.is_empty() {
                    sandbox.namespace.clone_from(id);
                }
            }
            ObjectKey::Endpoint(id) => {
                if sandbox.endpoint.is_empty() {
                    sandbox.endpoint.clone_from(id);
                }
            }
            // Traffic is attributed by compartment, so the room of traffic needs the owner too.
            ObjectKey::Compartment(compartment) => {
                sandbox.compartment = Some(*compartment);
                known = true;
                ctx.facts
                    .push(Fact::CompartmentKnown(*compartment, sandbox.container.clone()));
            }
            ObjectKey::Silo(_) => known = true,
            ObjectKey::Port(_)
            | ObjectKey::Network(_)
            | ObjectKey::Container(_)
            | ObjectKey::Job(_)
            | ObjectKey::Operation(_) => {}
        }
        let Some(open) = trace.and_then(|key| ctx.traces.get_mut(key)) else {
            return;
        };
        if known {
            ctx.facts.push(Fact::NetworkKnown(open.key));
        }
        // Operations that began before the namespace was known have none in their spans.
        // On Linux the span shows `CNI_NETNS` from the environment; here it is filled in when the namespace is known.
        if let ObjectKey::Namespace(id) = key {
            let operations = open
                .trace
                .spans
                .iter_mut()
                .filter_map(|span| span.detail.as_operation_mut());
            for detail in operations.filter(|detail| detail.netns.is_empty()) {
                detail.netns.clone_from(id);
            }
        }
    }

    /// A process of a silo started a lookup: what else it does belongs to the same sandbox.
    pub(super) fn process_of_silo(&mut self, at: Timestamp, pid: u32, silo: &str) {
        if let Some(number) = self.keys.owner(&ObjectKey::Silo(silo.to_owned())) {
            self.keys.processes.insert(pid, number, at);
        }
    }

    /// A connect names its compartment (Microsoft-Windows-TCPIP): that of its process's sandbox.
    pub(super) fn learn_compartment(&mut self, ctx: &mut Context, at: Timestamp, step: &ConnectStep) {
        let (Ok(compartment), Some(initiator)) = (u32::try_from(step.netns), &step.initiator) else {
            return;
        };
        if let Some(number) = self.keys.processes.get(&initiator.process.pid).copied() {
            self.learn(ctx, at, number, ObjectKey::Compartment(compartment));
        }
    }
}
