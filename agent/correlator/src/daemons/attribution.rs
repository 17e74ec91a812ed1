//! Chooses the request that something belongs to which a daemon executed, by the strongest evidence there is.
//!
//! Used by the room of daemons. Evidence is compared among the requests that were in flight at the daemon when the process was
//! forked: what fits several of them narrows the choice, and what fits one of them decides.
//! Does not: guess where the evidence speaks for none of them.

use sandglass_model::daemons::Goroutine;
use sandglass_model::trace::Attribution;
use sandglass_model::{ProcessKey, TextPairs, Timestamp};

use crate::daemons::request::{Request, Target};
use crate::invocation::Image;

/// A process that a daemon forked, or that lies below one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Started {
    pub(super) daemon: ProcessKey,
    /// The daemon's thread that forked; 0 when not known.
    pub(super) thread: u32,
    /// The daemon's goroutine that forked, where it is known.
    pub(super) goroutine: Option<Goroutine>,
    /// When it forked.
    pub(super) at: Timestamp,
}

/// Evidence, and whether it speaks for a target.
type Rung<'r> = (Attribution, &'r dyn Fn(&Target) -> bool);

/// The begin of an id that distinguishes it: as long as the short ids that tools print.
const SHORT_ID: usize = 12;

/// The newest of `requests` that the thread which forked had received by then, also if it has its answer: the thread does something
/// else by now.
pub(super) fn received_last(requests: &[(u64, &Request)], started: Started) -> Option<u64> {
    let received = requests.iter().filter_map(|(number, request)| {
        let (at, _) = request
            .arrived
            .filter(|(at, thread)| *thread == started.thread && *at <= started.at)?;
        Some((at, *number))
    });
    received.max().filter(|_| started.thread != 0).map(|(_, number)| number)
}

/// One of `requests`, all of the same daemon. `by_thread` is the one that the daemon's thread speaks for, if it speaks for one. `inode` is
/// that of a sandbox's network namespace, 0 when not known. `leads` says whether wake-ups lead from the receipt of a request to the fork.
pub(super) fn choose(
    requests: &[(u64, &Request)],
    started: Started,
    by_thread: Option<u64>,
    image: &Image,
    env: &TextPairs,
    inode: impl Fn(&str) -> u64,
    leads: impl Fn(u64, &Request) -> bool,
) -> Option<(u64, Attribution)> {
    let in_flight = requests.iter().filter(|(_, request)| request.is_in_flight(started.at));
    let mut left: Vec<(u64, &Request)> = in_flight.copied().collect();
    let alone = left.len() == 1;
    let about = env.get("CNI_CONTAINERID").filter(|id| !id.is_empty());
    if about.is_some_and(|id| left.iter().all(|(_, request)| request.target.container != id)) {
        // It is for another sandbox: a request that was not seen, or the daemon's own doing.
        return None;
    }
    let text =
        |wanted: &dyn Fn(&str) -> bool| image.args.iter().any(wanted) || env.iter().any(|(_, value)| wanted(value));
    let named = |target: &Target, length: usize| {
        let id = target.container.get(..length).unwrap_or(&target.container);
        id.len() >= SHORT_ID && text(&|text| has_word(text, id))
    };
    let netns = |target: &Target| {
        let name = target.netns.rsplit('/').next().unwrap_or_default();
        !name.is_empty() && text(&|text| has_word(text, name))
    };
    let inside = |target: &Target| image.netns != 0 && inode(&target.container) == image.netns;
    let interface = |target: &Target| !target.ifname.is_empty() && text(&|text| has_word(text, &target.ifname));
    let is_about = |target: &Target| about.is_some_and(|id| target.container == id);
    let rungs: [Rung<'_>; 6] = [
        (Attribution::ContainerId, &is_about),
        (Attribution::ContainerId, &|target| named(target, usize::MAX)),
        (Attribution::ContainerId, &|target| named(target, SHORT_ID)),
        (Attribution::Namespace, &netns),
        (Attribution::InNamespace, &inside),
        (Attribution::Interface, &interface),
    ];
    for (attribution, fits) in rungs {
        let fitting = || left.iter().filter(|(_, request)| fits(&request.target));
        match fitting().count() {
            0 => {}
            // An interface's name is the same in every sandbox: alone it says nothing.
            1 if attribution == Attribution::Interface && alone => {}
            1 => return fitting().next().map(|(number, _)| (*number, attribution)),
            _ => left = fitting().copied().collect(),
        }
    }
    if alone && left.iter().all(|(_, request)| !request.has_unseen_beside) {
        return left.first().map(|(number, _)| (*number, Attribution::OnlyRequest));
    }
    if let Some(number) = started.goroutine.and_then(|goroutine| of_goroutine(&left, goroutine)) {
        return Some((number, Attribution::Goroutine));
    }
    let led = || left.iter().filter(|(number, request)| leads(*number, request));
    if led().count() == 1 {
        return led().next().map(|(number, _)| (*number, Attribution::WakeUps));
    }
    if let Some(number) = by_thread.filter(|number| left.iter().any(|(of, _)| of == number)) {
        return Some((number, Attribution::Thread));
    }
    // A daemon mostly runs one command after another for a request.
    let newest = left
        .iter()
        .max_by_key(|(number, request)| (!request.has_running(), request.last_sign(), *number));
    newest.map(|(number, _)| (*number, Attribution::Newest))
}

/// The one of `requests` that this goroutine works for, by itself or by the goroutine that created it.
fn of_goroutine(requests: &[(u64, &Request)], goroutine: Goroutine) -> Option<u64> {
    let working = |id: u64| {
        let mut having = requests.iter().filter(move |(_, request)| request.has_goroutine(id));
        let first = having.next().map(|(number, _)| *number);
        first.filter(|_| having.next().is_none())
    };
    working(goroutine.id).or_else(|| working(goroutine.creator))
}

/// `word` stands in `text` with nothing of a name before or behind it. A short id may go on behind.
fn has_word(text: &str, word: &str) -> bool {
    let is_name = |letter: char| letter.is_ascii_alphanumeric();
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let behind = text[at + word.len()..].chars().next();
        let goes_on = behind.is_some_and(is_name) && word.len() != SHORT_ID;
        !before.is_some_and(is_name) && !goes_on
    })
}

#[cfg(test)]
mod tests {
    use super::has_word;

    #[test]
    fn a_word_stands_by_itself() {
        for (text, word, expected) in [
            ("eth1", "eth1", true),
            ("-i=eth1,x", "eth1", true),
            ("eth10", "eth1", false),
            ("veth1", "eth1", false),
            ("cni-0123456789ab", "0123456789ab", true),
            ("0123456789abcdef", "0123456789ab", true),
            ("ab0123456789ab", "0123456789ab", false),
            ("", "eth1", false),
            ("é-eth1-é", "eth1", true),
        ] {
            assert_eq!(has_word(text, word), expected, "{text}");
        }
    }
}
