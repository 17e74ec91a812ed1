//! A pod's identity with its labels in two allocations.
//!
//! Used by `memory.rs`, which keeps thousands of them: a [`PodIdentity`] allocates each text, and two for each label. Does not:
//! change in place; what is merged is packed anew.

use sandglass_model::PodIdentity;

/// The pod. Nothing is allocated where nothing is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedPod {
    /// Namespace, name and uid, then key and value of each label, without anything between them.
    texts: Box<str>,
    /// Where each text ends; empty where nothing is known.
    ends: Box<[u32]>,
}

impl PackedPod {
    pub(crate) fn of(identity: &PodIdentity) -> PackedPod {
        if identity.is_empty() && identity.labels.is_empty() {
            return PackedPod::default();
        }
        let labels = identity.labels.iter().flat_map(|(key, value)| [key, value]);
        let texts = [&identity.namespace, &identity.name, &identity.uid]
            .into_iter()
            .chain(labels);
        let mut joined = String::with_capacity(texts.clone().map(String::len).sum());
        let mut ends = Vec::with_capacity(3 + 2 * identity.labels.len());
        for text in texts {
            joined.push_str(text);
            // Texts of the runtime are cut long before 4 GiB.
            ends.push(joined.len() as u32);
        }
        PackedPod {
            texts: joined.into(),
            ends: ends.into(),
        }
    }

    pub(crate) fn identity(&self) -> PodIdentity {
        let mut texts = self.texts().map(str::to_owned);
        let mut next = || texts.next().unwrap_or_default();
        let (namespace, name, uid) = (next(), next(), next());
        let mut labels = Vec::with_capacity(self.ends.len().saturating_sub(3) / 2);
        while let (Some(key), Some(value)) = (texts.next(), texts.next()) {
            labels.push((key, value));
        }
        PodIdentity {
            namespace,
            name,
            uid,
            labels,
        }
    }

    /// The Kubernetes namespace; empty when not known.
    pub(crate) fn namespace(&self) -> &str {
        self.texts().next().unwrap_or_default()
    }

    /// As [`PodIdentity::merge`].
    pub(crate) fn merge(&mut self, other: &PodIdentity) {
        if self.lacks(other) {
            let mut merged = self.identity();
            merged.merge(other);
            *self = PackedPod::of(&merged);
        }
    }

    /// Merging `other` would change something. What comes again, as at the end of each creation, does not.
    fn lacks(&self, other: &PodIdentity) -> bool {
        let mut mine = self.texts();
        let is_new = |theirs: &String| mine.next().is_none_or(str::is_empty) && !theirs.is_empty();
        let mut named = [&other.namespace, &other.name, &other.uid].map(is_new).into_iter();
        let labels = other.labels.iter().flat_map(|(key, value)| [key, value]);
        named.any(|is_new| is_new) || !other.labels.is_empty() && !self.texts().skip(3).eq(labels)
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let mut begin = 0;
        self.ends.iter().map(move |end| {
            let end = *end as usize;
            let text = self.texts.get(begin..end).unwrap_or_default();
            begin = end;
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let mut identity = PodIdentity::default();
        assert_eq!(PackedPod::of(&identity), PackedPod::default());
        assert_eq!(PackedPod::default().identity(), identity);
        identity.uid = "0a".to_owned();
        assert_eq!(PackedPod::of(&identity).identity(), identity);
        identity.namespace = "größe".to_owned();
        identity.labels = vec![("app".to_owned(), String::new()), (String::new(), "x".to_owned())];
        let packed = PackedPod::of(&identity);
        assert_eq!((packed.identity(), packed.namespace()), (identity, "größe"));
    }

    #[test]
    fn what_is_known_already_stays_and_labels_are_replaced() {
        let known = PodIdentity {
            namespace: "a".to_owned(),
            labels: vec![("k".to_owned(), "1".to_owned())],
            ..PodIdentity::default()
        };
        let other = PodIdentity {
            namespace: "b".to_owned(),
            name: "pod".to_owned(),
            labels: vec![("k".to_owned(), "2".to_owned())],
            ..PodIdentity::default()
        };
        let mut packed = PackedPod::of(&known);
        packed.merge(&other);
        let mut merged = known;
        merged.merge(&other);
        assert_eq!((packed.identity(), packed.namespace()), (merged, "a"));
    }
}
