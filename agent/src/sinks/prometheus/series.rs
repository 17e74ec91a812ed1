//! The series of a closed label set, found by position.
//!
//! Used for what is counted with every lookup, connect and conntrack entry: to find a series by its labels takes a lock and
//! a hash over their text, which cost more than all else that a sink does with a healthy lookup. Does not: register; the
//! family that a series is of does.

use std::hash::Hash;

use prometheus_client::metrics::family::{Family, MetricConstructor};

/// Series of one family, in an order of the user's.
#[derive(Clone, Debug)]
pub(super) struct SeriesList<M>(Vec<M>);

impl<M: Clone> SeriesList<M> {
    /// The series with these labels; those that do not exist are created.
    pub(super) fn of<L, C>(family: &Family<L, M, C>, labels: impl IntoIterator<Item = L>) -> SeriesList<M>
    where
        L: Clone + Hash + Eq,
        C: MetricConstructor<M>,
    {
        let series = labels.into_iter().map(|labels| family.get_or_create(&labels).clone());
        SeriesList(series.collect())
    }

    /// The series at a position; `None` beyond the last.
    pub(super) fn get(&self, position: usize) -> Option<&M> {
        self.0.get(position)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn a_series_is_the_familys_own() {
        let family: Family<Vec<(String, String)>, Counter> = Family::default();
        let labels = ["a", "b"].map(|name| vec![("name".to_owned(), name.to_owned())]);
        let list = SeriesList::of(&family, labels.clone());
        list.get(1).unwrap().inc();
        let counts = labels.map(|labels| family.get_or_create(&labels).get());
        assert_eq!(counts, [0, 1]);
        assert!(list.get(2).is_none());
    }
}
