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
        PackedPod::pack(named(identity).into_iter().chain(labels(identity)))
    }

    fn pack<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> PackedPod {
        let (count, bytes) = texts
            .clone()
            .fold((0, 0), |(count, bytes), text| (count + 1, bytes + text.len()));
        let mut joined = String::with_capacity(bytes);
        let mut ends = Vec::with_capacity(count);
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
        let mut identity = PodIdentity::default();
        self.complete(&mut identity);
        identity
    }

    /// Merges this pod into `other`, as [`PodIdentity::merge`]. What `other` has already is not copied first: a DEL names
    /// its pod itself.
    pub(crate) fn complete(&self, other: &mut PodIdentity) {
        let mut texts = self.texts();
        for mine in [&mut other.namespace, &mut other.name, &mut other.uid] {
            let theirs = texts.next().unwrap_or_default();
            if mine.is_empty() {
                theirs.clone_into(mine);
            }
        }
        let count = self.ends.len().saturating_sub(3) / 2;
        if count > 0 {
            other.labels = Vec::with_capacity(count);
        }
        while let (Some(key), Some(value)) = (texts.next(), texts.next()) {
            other.labels.push((key.to_owned(), value.to_owned()));
        }
    }

    /// The Kubernetes namespace; empty when not known.
    pub(crate) fn namespace(&self) -> &str {
        self.texts().next().unwrap_or_default()
    }

    /// As [`PodIdentity::merge`].
    pub(crate) fn merge(&mut self, other: &PodIdentity) {
        if !self.lacks(other) {
            return;
        }
        let mut mine = self.texts();
        let named = named(other).map(|theirs| mine.next().filter(|text| !text.is_empty()).unwrap_or(theirs));
        let kept = mine.filter(|_| other.labels.is_empty());
        *self = PackedPod::pack(named.into_iter().chain(kept).chain(labels(other)));
    }

    /// Merging `other` would change something. What comes again, as at the end of each creation, does not.
    fn lacks(&self, other: &PodIdentity) -> bool {
        let mut mine = self.texts();
        let is_new = |theirs: &str| mine.next().is_none_or(str::is_empty) && !theirs.is_empty();
        let mut named = named(other).map(is_new).into_iter();
        named.any(|is_new| is_new) || !other.labels.is_empty() && !self.texts().skip(3).eq(labels(other))
    }

    fn texts(&self) -> impl Iterator<Item = &str> + Clone {
        let mut begin = 0;
        self.ends.iter().map(move |end| {
            let end = *end as usize;
            let text = self.texts.get(begin..end).unwrap_or_default();
            begin = end;
            text
        })
    }
}

/// Namespace, name and uid.
fn named(identity: &PodIdentity) -> [&str; 3] {
    [&identity.namespace, &identity.name, &identity.uid].map(String::as_str)
}

/// Key and value of each label, one after the other.
fn labels(identity: &PodIdentity) -> impl Iterator<Item = &str> + Clone {
    let pairs = identity.labels.iter();
    pairs.flat_map(|(key, value)| [key.as_str(), value.as_str()])
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
        let more = PodIdentity {
            uid: "0a".to_owned(),
            ..PodIdentity::default()
        };
        let mut packed = PackedPod::of(&known);
        let mut completed = other.clone();
        packed.complete(&mut completed);
        assert_eq!(
            (completed.namespace.as_str(), completed.name.as_str(), &completed.labels),
            ("b", "pod", &known.labels)
        );
        let mut merged = known;
        for other in [other, more] {
            packed.merge(&other);
            merged.merge(&other);
        }
        assert_eq!((packed.identity(), packed.namespace()), (merged, "a"));
    }
}
