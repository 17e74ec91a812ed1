//! What a lookup came to so far: what is pending, when it is over, its result, and how its span shows it.

use sandglass_model::Timestamp;
use sandglass_model::trace::{LookupDetail, LookupResult};

use crate::config::TrafficBounds;
use crate::notes::type_name;
use crate::traffic::lookup::matching::{PARALLEL_NS, RETRY_NS};
use crate::traffic::lookup::{Lookup, base};

/// What a question's answer said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerOutcome {
    pub(super) at: Timestamp,
    pub(crate) rcode: u16,
    pub(crate) records: u16,
    pub(crate) truncated: bool,
    /// It came from elsewhere than it was asked of: it counts until the question is asked again.
    pub(super) elsewhere: bool,
}

impl AnswerOutcome {
    /// There is such a name, or there is none; not cut.
    pub(super) fn is_final(self) -> bool {
        LookupResult::Rcode(self.rcode).is_answer() && !self.truncated
    }

    /// It names something.
    pub(crate) fn is_useful(self) -> bool {
        self.rcode == 0 && (self.records > 0 || self.truncated)
    }
}

impl Lookup {
    /// The question has no answer that would do.
    fn is_question_pending(&self, index: usize) -> bool {
        let state = &self.questions[index];
        match state.outcome {
            None => true,
            Some(outcome) if LookupResult::Rcode(outcome.rcode).is_answer() => {
                let mut sent = self.sent.iter().filter(|sent| sent.question == index);
                sent.any(|sent| sent.answered.is_none() && sent.is_after(outcome))
            }
            // One server could not, another one has been asked too.
            Some(_) => self.sent.iter().any(|sent| {
                sent.question == index && sent.answered.is_none() && sent.at.since(state.first) <= PARALLEL_NS
            }),
        }
    }

    /// Some answer is missing.
    pub(crate) fn is_pending(&self) -> bool {
        (0..self.questions.len()).any(|index| self.is_question_pending(index))
    }

    /// The name that is tried now came to nothing: every answer is there, and none names anything.
    pub(crate) fn found_nothing(&self) -> bool {
        let current = self.current();
        let mut outcomes = self.questions.iter().filter(|state| state.name == current);
        !self.is_pending() && !outcomes.any(|state| state.outcome.is_some_and(AnswerOutcome::is_useful))
    }

    pub(crate) fn last_answer(&self) -> Timestamp {
        self.last_answer
    }

    /// When something was last heard of it.
    pub(crate) fn last_sign(&self) -> Timestamp {
        let last_query = self.questions.iter().map(|state| state.last).max();
        last_query.unwrap_or(self.start).max(self.last_answer)
    }

    /// When it is over if nothing more comes.
    pub(crate) fn due(&self, config: &TrafficBounds) -> Timestamp {
        // Whether an answer from elsewhere was taken shows when the question is asked again, or not.
        let doubted = |index: usize| self.questions[index].outcome.is_some_and(|outcome| outcome.elsewhere);
        let waiting = (0..self.questions.len()).filter(|&index| self.is_question_pending(index) || doubted(index));
        let deadline = waiting.map(|index| self.questions[index].first).max();
        match deadline {
            Some(first) => first.plus(config.lookup_deadline_ns),
            None => self.last_answer.plus(config.search_gap_ns),
        }
    }

    /// How it ends when it ends by `now`: the result, and when.
    pub(crate) fn ending(&self, now: Timestamp) -> (LookupResult, Timestamp) {
        let result = self.result();
        let any_answer = self.questions.iter().any(|state| state.outcome.is_some());
        // A question that was asked once and never again was not waited for: the program went on with the other answer.
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
        let end = abandoned.max().unwrap_or(self.last_answer);
        (result, end.max(self.last_answer).max(self.start))
    }

    /// Time between the last two times a question was sent for want of an answer.
    fn last_pause(&self, question: usize) -> Option<u64> {
        let mut again = self.sent.iter().rev().filter(|sent| sent.question == question);
        let last = again.find(|sent| sent.again)?;
        let before = again.find(|sent| last.at.since(sent.at) >= RETRY_NS)?;
        Some(last.at.since(before.at))
    }

    fn result(&self) -> LookupResult {
        let current = self.current();
        let of_current = self.questions.iter().filter(|state| state.name == current);
        let outcomes: Vec<AnswerOutcome> = of_current.filter_map(|state| state.outcome).collect();
        let useful = outcomes.iter().find(|outcome| outcome.is_useful());
        let answer = outcomes
            .iter()
            .find(|outcome| LookupResult::Rcode(outcome.rcode).is_answer());
        match useful.or(answer).or(outcomes.last()) {
            Some(outcome) => LookupResult::Rcode(outcome.rcode),
            None if self.is_unknown(current) => LookupResult::Unknown,
            None => LookupResult::Unanswered,
        }
    }

    /// An answer about this name may have come unseen.
    fn is_unknown(&self, name: usize) -> bool {
        (0..self.questions.len()).any(|index| self.questions[index].name == name && self.is_unseen(index))
    }

    /// An answer to this question may have come unseen.
    fn is_unseen(&self, question: usize) -> bool {
        let mut sent = self.sent.iter().filter(|sent| sent.question == question);
        sent.any(|sent| sent.unseen && sent.answered.is_none())
    }

    /// Questions that never got an answer.
    pub(crate) fn unanswered(&self) -> u32 {
        let questions = self.questions.iter().enumerate();
        let unanswered = questions.filter(|(index, state)| state.outcome.is_none() && !self.is_unseen(*index));
        u32::try_from(unanswered.count()).unwrap_or(u32::MAX)
    }

    /// The name as the program meant it: what all names tried have in common.
    pub(crate) fn name(&self) -> String {
        base(self.names.iter().map(AsRef::as_ref)).to_owned()
    }

    /// The lookup as a span shows it, with its result once it has one.
    pub(crate) fn detail(&self, result: Option<LookupResult>) -> LookupDetail {
        let mut kinds: Vec<u16> = Vec::new();
        for state in &self.questions {
            if !kinds.contains(&state.kind) {
                kinds.push(state.kind);
            }
        }
        LookupDetail {
            name: self.name(),
            types: kinds.into_iter().map(type_name).collect(),
            servers: self.servers.clone(),
            transport: self.transport,
            result,
            queries: self.queries,
            retransmissions: self.retransmissions,
            unanswered: match result {
                None | Some(LookupResult::Open) => 0,
                Some(_) => self.unanswered(),
            },
            search_names: u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX),
            truncated: self.truncated,
            addresses: self.addresses.clone(),
            backend: self.backend,
            initiator: self.initiator.clone(),
            cause: None,
        }
    }
}
