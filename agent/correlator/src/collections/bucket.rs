//! The few entries of one place in a hash map, the first beside the place itself.
//!
//! Used by the maps that are looked into several times per event: their places lie side by side and most hold one entry, so
//! that a look-up goes to one piece of memory instead of two. Does not: keep an order.

/// The entries.
#[derive(Debug)]
pub(crate) struct Bucket<T> {
    first: Option<T>,
    rest: Vec<T>,
}

impl<T> Bucket<T> {
    /// So many empty ones.
    pub(crate) fn many(count: usize) -> Vec<Bucket<T>> {
        let empty = || Bucket {
            first: None,
            rest: Vec::new(),
        };
        std::iter::repeat_with(empty).take(count).collect()
    }

    pub(crate) fn find(&self, is_it: impl Fn(&T) -> bool) -> Option<&T> {
        match &self.first {
            Some(first) if is_it(first) => Some(first),
            Some(_) => self.rest.iter().find(|entry| is_it(entry)),
            None => None,
        }
    }

    pub(crate) fn find_mut(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&mut T> {
        match &mut self.first {
            Some(first) if is_it(first) => Some(first),
            Some(_) => self.rest.iter_mut().find(|entry| is_it(entry)),
            None => None,
        }
    }

    pub(crate) fn push(&mut self, entry: T) {
        match &self.first {
            Some(_) => self.rest.push(entry),
            None => self.first = Some(entry),
        }
    }

    /// Takes an entry out.
    pub(crate) fn take(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        if self.first.as_ref().is_some_and(&is_it) {
            return std::mem::replace(&mut self.first, self.rest.pop());
        }
        let place = self.rest.iter().position(is_it)?;
        Some(self.rest.swap_remove(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_and_go_in_any_order() {
        for gone in 1..=3 {
            let mut bucket = Bucket::many(1).remove(0);
            for number in 1..=3 {
                assert_eq!(bucket.find(|entry| *entry == number), None);
                bucket.push(number);
            }
            assert_eq!(bucket.take(|entry| *entry == gone), Some(gone));
            assert_eq!(bucket.take(|entry| *entry == gone), None);
            let mut left: Vec<i32> = bucket.first.iter().chain(&bucket.rest).copied().collect();
            left.sort_unstable();
            assert_eq!(left.len(), 2);
            for number in left {
                assert_eq!(bucket.find_mut(|entry| *entry == number), Some(&mut { number }));
                assert_eq!(bucket.take(|entry| *entry == number), Some(number));
            }
            assert!(bucket.first.is_none() && bucket.rest.is_empty());
        }
    }
}
