//! The outcome of a lookup: what is pending, when it is over, its result, and its span's detail.
//!
//! Used by `dns.rs`, `lifecycle.rs` and `endings.rs`. NXDOMAIN and NODATA are answers (RFC 2308, section 2): they end a
//! question as addresses do. SERVFAIL, REFUSED and the like do not, since a resolver goes on to the next server. Does
//! not: change the lookup.

use sandglass_model::trace::{LookupDetail, LookupResult};
use sandglass_model::{SmolStr, Timestamp};

use crate::config::TrafficBounds;
use crate::finding;
use crate::notes::type_name;
use crate::traffic::lookup::question::{AnswerOutcome, PARALLEL_NS, RETRY_NS, SentQuery};
use crate::traffic::lookup::{Lookup, base};
use crate::traffic::table::{Brief, Way};

impl Lookup {
    /// The question has no answer that the resolver would accept as the end.
    fn is_question_pending(&self, index: usize) -> bool {
        let state = &self.questions[index];
        match state.outcome {
            None => true,
            Some(outcome) if LookupResult::Rcode(outcome.rcode).is_answer() => {
                let mut sent = self.sent.iter().filter(|sent| sent.question == index);
                sent.any(|sent| sent.answered.is_none() && sent.is_after(outcome))
            }
            // One server answered with an error, and another one was queried at the same time.
            Some(_) => self.sent.iter().any(|sent| {
                sent.question == index && sent.answered.is_none() && sent.at.since(state.first) <= PARALLEL_NS
            }),
        }
    }

    /// What can be said of it without a look at it, once every question was asked once, in one way, and answered to the end,
    /// with something useful among the answers.
    pub(crate) fn brief(&self) -> Option<Brief> {
        let ([name], [first, rest @ ..]) = (self.names.as_slice(), self.sent.as_slice()) else {
            return None;
        };
        let as_first = |sent: &SentQuery| {
            sent.client == first.client && sent.server == first.server && sent.transport == first.transport
        };
        let kinds = match self.questions.as_slice() {
            [asked] => [asked.kind; 2],
            [asked, other] => [asked.kind, other.kind],
            _ => return None,
        };
        let mut outcomes = self.questions.iter().map(|asked| asked.outcome);
        let once = self.sent.len() == self.questions.len() && rest.iter().all(as_first);
        let answered = self.sent.iter().all(|sent| sent.answered.is_some());
        let well = outcomes.all(|outcome| outcome.is_some_and(|outcome| outcome.is_final() && !outcome.elsewhere));
        let useful = self
            .questions
            .iter()
            .any(|asked| asked.outcome.is_some_and(AnswerOutcome::is_useful));
        let plain = !self.truncated && self.retransmissions == 0;
        (!name.is_empty() && once && answered && well && useful && plain).then(|| Brief {
            kinds,
            way: Way::new(first.client, first.server, first.transport),
            asked_until: rest.last().map_or(first.at, |last| last.at.max(first.at)),
        })
    }

    /// The answer to at least one question is missing.
    pub(crate) fn is_pending(&self) -> bool {
        (0..self.questions.len()).any(|index| self.is_question_pending(index))
    }

    /// Every question of the current name is answered and none of the answers has records: a resolver tries the next
    /// name of the search path.
    pub(crate) fn found_nothing(&self) -> bool {
        let current = self.current();
        let mut outcomes = self.questions.iter().filter(|state| state.name == current);
        !self.is_pending() && !outcomes.any(|state| state.outcome.is_some_and(AnswerOutcome::is_useful))
    }

    /// Every question is answered and nothing further has to follow: it waits only to see whether something does.
    pub(crate) fn is_answered(&self) -> bool {
        !self.is_pending() && !self.found_nothing()
    }

    /// Time of the last answer; the begin of the lookup without one.
    pub(crate) fn last_answer(&self) -> Timestamp {
        self.last_answer
    }

    /// Time of the last query or answer.
    pub(crate) fn last_sign(&self) -> Timestamp {
        let last_query = self.questions.iter().map(|state| state.last).max();
        last_query.unwrap_or(self.start).max(self.last_answer)
    }

    /// When it is over if no message comes. While a question is pending that is the timeout of its first query;
    /// otherwise a moment after the last answer, in which the next name of the search path may follow.
    pub(crate) fn due(&self, config: &TrafficBounds) -> Timestamp {
        // The client shows whether it accepted an answer from another address only by repeating the question, or not.
        let doubted = |index: usize| self.questions[index].outcome.is_some_and(|outcome| outcome.elsewhere);
        let waiting = (0..self.questions.len()).filter(|&index| self.is_question_pending(index) || doubted(index));
        let deadline = waiting.map(|index| self.questions[index].first).max();
        match deadline {
            Some(first) => first.plus(config.lookup_deadline_ns),
            None => self.last_answer.plus(config.search_gap_ns),
        }
    }

    /// Result and end, if it ends at `now` at the latest. Without an answer it ends when the resolver stopped waiting:
    /// as long after its last query as it had waited before that.
    pub(crate) fn ending(&self, now: Timestamp) -> (LookupResult, Timestamp) {
        let result = self.result();
        let any_answer = self.questions.iter().any(|state| state.outcome.is_some());
        // A question that was sent once and never again was not waited for: the program went on with the other answer.
        let missed = self
            .questions
            .iter()
            .enumerate()
            .filter(|(_, state)| state.outcome.is_none() && (state.retried || !any_answer));
        let abandoned = missed.map(|(index, state)| {
            let pause = self.last_pause(index);
            // Resolvers wait after their last attempt as long as before it.
            pause.map_or(now, |pause| state.last.plus(pause)).min(now)
        });
        // The program waited for the slowest of its questions.
        let end = abandoned.max().unwrap_or(self.last_answer);
        (result, end.max(self.last_answer).max(self.start))
    }

    /// Time between the last two times that a question was sent for want of an answer; `None` if it was never repeated.
    fn last_pause(&self, question: usize) -> Option<u64> {
        let mut again = self.sent.iter().rev().filter(|sent| sent.question == question);
        let last = again.find(|sent| sent.again)?;
        let before = again.find(|sent| last.at.since(sent.at) >= RETRY_NS)?;
        Some(last.at.since(before.at))
    }

    /// The result: an answer with records, else any answer, else the last error. Of the current name only: earlier
    /// names of a search path had to fail.
    fn result(&self) -> LookupResult {
        let current = self.current();
        let of_current = self.questions.iter().filter(|state| state.name == current);
        let mut outcomes = of_current.filter_map(|state| state.outcome);
        let useful = outcomes.clone().find(|outcome| outcome.is_useful());
        let answer = outcomes
            .clone()
            .find(|outcome| LookupResult::Rcode(outcome.rcode).is_answer());
        // An address of one type is a result whatever the other type came to.
        match useful.or(answer).or_else(|| outcomes.next_back()) {
            Some(outcome) => LookupResult::Rcode(outcome.rcode),
            None if self.is_unknown(current) => LookupResult::Unknown,
            None => LookupResult::Unanswered,
        }
    }

    /// An answer about this name may have come unseen: the result is not known.
    fn is_unknown(&self, name: usize) -> bool {
        (0..self.questions.len()).any(|index| self.questions[index].name == name && self.is_unseen(index))
    }

    /// An answer to this question may have come unseen.
    fn is_unseen(&self, question: usize) -> bool {
        let mut sent = self.sent.iter().filter(|sent| sent.question == question);
        sent.any(|sent| sent.unseen && sent.answered.is_none())
    }

    /// The number of questions that never got an answer.
    pub(crate) fn unanswered(&self) -> u32 {
        let questions = self.questions.iter().enumerate();
        let unanswered = questions.filter(|(index, state)| state.outcome.is_none() && !self.is_unseen(*index));
        u32::try_from(unanswered.count()).unwrap_or(u32::MAX)
    }

    /// The name as the program meant it: the labels that all names tried begin with.
    pub(crate) fn name(&self) -> SmolStr {
        match self.names.as_slice() {
            [name] => name.clone(),
            names => base(names.iter().map(SmolStr::as_str)).into(),
        }
    }

    /// The detail of its span; `result` is `None` while it is open.
    pub(crate) fn detail(&self, result: Option<LookupResult>) -> LookupDetail {
        let mut detail = finding::no_lookup();
        self.fill_detail(&mut detail, result);
        detail
    }

    /// The same in the memory of another detail: a healthy lookup, whose detail only metrics read, allocates nothing for it.
    pub(crate) fn fill_detail(&self, detail: &mut LookupDetail, result: Option<LookupResult>) {
        detail.name.clear();
        match self.names.as_slice() {
            [name] => detail.name.push_str(name),
            names => detail.name.push_str(base(names.iter().map(SmolStr::as_str))),
        }
        let mut types = 0;
        for (index, state) in self.questions.iter().enumerate() {
            if self.questions[..index].iter().any(|before| before.kind == state.kind) {
                continue;
            }
            let name = type_name(state.kind);
            match detail.types.get_mut(types) {
                Some(text) => {
                    text.clear();
                    text.push_str(&name);
                }
                None => detail.types.push(name.into_owned()),
            }
            types += 1;
        }
        detail.types.truncate(types);
        detail.servers.clone_from(&self.servers);
        detail.transport = self.transport;
        detail.result = result;
        detail.queries = self.queries;
        detail.retransmissions = self.retransmissions;
        detail.unanswered = match result {
            None | Some(LookupResult::Open) => 0,
            Some(_) => self.unanswered(),
        };
        detail.search_names = u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX);
        detail.truncated = self.truncated;
        detail.addresses.clone_from(&self.addresses);
        detail.backend = self.backend;
        detail.initiator.clone_from(&self.initiator);
        detail.cause = None;
    }
}
