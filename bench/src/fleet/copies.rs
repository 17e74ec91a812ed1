//! A story's traces as another node made them at another time: own ids, own pod, own wall clock.
//!
//! Used by the fleet for each trace of each agent. Ids are hashes of the node's boot id, of the story's number on that node and of
//! the recording's id, as an agent's own are hashes of the boot id and of what happened: two nodes never share one, a story's links
//! lead to the copies, and the same call gives the same ids. Does not: change what happened or how long it took.

use sandglass_model::{ClockAnchor, SandboxId, SpanId, Trace, TraceId};

/// A node of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its boot id.
    pub boot_id: String,
}

impl Node {
    /// Node `number` of a fleet.
    #[must_use]
    pub fn new(number: usize) -> Node {
        Node {
            name: format!("node-{number:05}"),
            boot_id: uuid(TraceId::of(&[b"boot", &number.to_le_bytes()]).0),
        }
    }

    /// `trace` as part of story `story` of this node, with its end at `end_unix_ns` of the wall clock.
    #[must_use]
    pub fn copy(&self, trace: &Trace, story: u64, end_unix_ns: u64) -> Trace {
        let mut copy = trace.clone();
        copy.id = self.trace_id(trace.id, story);
        copy.remote_parent = trace.remote_parent.map(|id| self.span_id(id, story));
        for span in &mut copy.spans {
            span.id = self.span_id(span.id, story);
            for link in &mut span.links {
                link.trace = self.trace_id(link.trace, story);
                link.span = self.span_id(link.span, story);
            }
        }
        let end = trace.root().end.unwrap_or(trace.root().start);
        copy.anchor = ClockAnchor {
            boot_ns: end.0,
            unix_ns: end_unix_ns,
        };
        if !copy.identity.name.is_empty() {
            let pod = self.hash(&[copy.identity.name.as_bytes()], story);
            copy.identity.name.push_str(&format!("-{:08x}", pod as u32));
            copy.identity.uid = uuid(pod);
        }
        copy.sandbox = copy.sandbox.map(|sandbox| {
            let half = self.hash(&[sandbox.0.as_bytes()], story);
            SandboxId(format!("{half:032x}{:032x}", !half))
        });
        copy
    }

    fn trace_id(&self, id: TraceId, story: u64) -> TraceId {
        TraceId(self.hash(&[b"trace", &id.0.to_le_bytes()], story))
    }

    fn span_id(&self, id: SpanId, story: u64) -> SpanId {
        SpanId::of(&[self.boot_id.as_bytes(), &story.to_le_bytes(), &id.0.to_le_bytes()])
    }

    fn hash(&self, parts: &[&[u8]], story: u64) -> u128 {
        let story = story.to_le_bytes();
        let own = [self.boot_id.as_bytes(), &story];
        TraceId::of(&[own.as_slice(), parts].concat()).0
    }
}

/// 128 bits in the form of a UUID.
fn uuid(bits: u128) -> String {
    let digits = format!("{bits:032x}");
    let part = |range| digits.get(range).unwrap_or_default();
    format!(
        "{}-{}-{}-{}-{}",
        part(0..8),
        part(8..12),
        part(12..16),
        part(16..20),
        part(20..32)
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fleet::stories::{Mix, Scene};

    fn scenes(mix: &Mix) -> Vec<&Scene> {
        let stories = mix.stories().iter().step_by(7);
        stories.flat_map(|story| story.begin.iter().chain(&story.end)).collect()
    }

    #[test]
    fn no_two_nodes_and_no_two_stories_share_an_id() {
        let mix = Mix::healthy().unwrap();
        let scenes = scenes(&mix);
        // Variants of a recording have ids of their own only where their begin moved; a node plays each as a story of its own.
        let mut traces = BTreeSet::new();
        let mut spans = BTreeSet::new();
        let mut made = 0;
        for node in [Node::new(0), Node::new(1), Node::new(4_999)] {
            for (story, scene) in scenes.iter().enumerate() {
                let copy = node.copy(&scene.trace, story as u64, 1_790_000_000_000_000_000);
                assert!(traces.insert(copy.id), "{}", copy.id);
                for span in &copy.spans {
                    assert!(spans.insert(span.id), "{}", span.id);
                    made += 1;
                }
            }
        }
        assert!(traces.len() == 3 * scenes.len() && spans.len() == made && made > 1_000);
    }

    #[test]
    fn copies_are_valid_repeat_and_end_when_they_should() {
        let mix = Mix::healthy().unwrap();
        let node = Node::new(17);
        for scene in scenes(&mix) {
            let end = 1_790_000_000_000_000_000;
            let copy = node.copy(&scene.trace, 3, end);
            assert_eq!(copy.check(), Ok(()));
            assert_eq!(copy, node.copy(&scene.trace, 3, end));
            assert_eq!(copy.anchor.unix_ns(copy.root().end.unwrap()), end);
            assert_eq!(copy.spans.len(), scene.trace.spans.len());
            assert_eq!(
                copy.root().duration_ns(copy.start()),
                scene.trace.root().duration_ns(scene.trace.start())
            );
        }
    }

    #[test]
    fn links_within_a_story_lead_to_its_copies() {
        let mix = Mix::healthy().unwrap();
        let node = Node::new(2);
        let mut followed = 0;
        for story in mix.stories() {
            let scenes: Vec<&Scene> = story.begin.iter().chain(&story.end).collect();
            let roots: Vec<_> = scenes.iter().map(|scene| scene.trace.root_id()).collect();
            let copies: Vec<Trace> = scenes.iter().map(|scene| node.copy(&scene.trace, 9, 1)).collect();
            for (scene, copy) in scenes.iter().zip(&copies) {
                for (old, new) in scene.trace.root().links.iter().zip(&copy.root().links) {
                    if let Some(index) = roots.iter().position(|root| *root == old.to()) {
                        assert_eq!(new.to(), copies[index].root_id());
                        followed += 1;
                    }
                }
            }
        }
        assert!(followed > 100, "{followed}");
    }

    #[test]
    fn boot_ids_are_uuids() {
        let node = Node::new(12);
        assert_eq!(node.name, "node-00012");
        let parts: Vec<usize> = node.boot_id.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_ne!(node.boot_id, Node::new(13).boot_id);
    }
}
