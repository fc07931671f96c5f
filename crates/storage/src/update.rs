//! The optimistic write loop, Kubernetes' `GuaranteedUpdate`: read, decide, and write. If another client wrote
//! meanwhile, decide again on the new state.
//!
//! ```text
//!                     suggestion (a cached state, perhaps stale)
//!                        │                       none: Read
//!                        ▼                          │
//!       ┌────────▶ Decide on it ◀──────── Read ◀────┤
//!       │                │  rejects or does not change a suggested state:
//!       │                │  Read; if unchanged, the result is final, else Decide again
//!       │                ▼
//!       │        Create / Update / Delete at the revision of that state
//!       └── Conflict ────┤  (the response contains the current state: no read needed)
//!                        ▼
//!                      Done
//! ```
//!
//! [`UpdateLoop`] is that state machine: it is pure, returns the next action ([`Step`]) and
//! receives the result. [`guaranteed_update`] runs it on a [`Storage`]. A caller whose decision
//! must await (an admission webhook) runs the state machine itself.
//!
//! Source: `GuaranteedUpdate` and `Delete` of `pkg/storage/etcd3/store.go`, except that the number
//! of rounds is bounded.

use std::time::Duration;

use bytes::Bytes;
use listwatch_meta::{Key, Revision, canary};

use crate::error::{CreateError, DeleteError, ReadError, StoreFault, UpdateError};
use crate::types::{KeyValue, Storage};

/// The caller's decision on a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Write this value: a create if the key is absent, else an update. A value equal to the
    /// current one is not written ([`Outcome::Unchanged`]), and so does not renew a TTL, unless the
    /// current one is [stale](KeyValue::stale).
    Write {
        /// The new bytes.
        value: Bytes,
        /// As in [`Storage::create`] and [`Storage::update`].
        ttl: Option<Duration>,
    },
    /// Remove the key; the same as [`Decision::Nothing`] if it is absent.
    Delete,
    /// Write nothing.
    Nothing,
}

/// The result of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key was created.
    Created(KeyValue),
    /// The key's value was replaced.
    Updated {
        /// The new state.
        current: KeyValue,
        /// The replaced state.
        previous: KeyValue,
    },
    /// The key was removed.
    Deleted {
        /// The last state.
        previous: KeyValue,
        /// The revision of the removal.
        revision: Revision,
    },
    /// Nothing was written. The state was read linearizably (not only suggested) and needed no
    /// change.
    Unchanged(Option<KeyValue>),
}

/// The error of a guaranteed update. `E` is the caller's own error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuaranteedUpdateError<E> {
    /// The caller's function rejected the current state; a rejection of a suggested state was
    /// confirmed by a read.
    #[error("{0}")]
    Refused(E),
    /// Other clients wrote between every read and write, [`UpdateLimits::attempts`] times. Try
    /// again later.
    #[error("the object was changed by others {attempts} times in a row")]
    Contended {
        /// The number of conflicts.
        attempts: u32,
    },
    /// The store failed. After [`StoreFault::Unavailable`] the write may have taken effect.
    #[error("{0}")]
    Fault(StoreFault),
}

/// The limits of a guaranteed update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateLimits {
    /// Conflicts after which the update fails with [`GuaranteedUpdateError::Contended`]. In kube-apiserver, only the
    /// request's deadline is a bound. Here the caller applies a deadline by dropping the future.
    pub attempts: u32,
}

/// Default of [`UpdateLimits::attempts`]. Each conflict means that another write succeeded, so even
/// hundreds of clients that write one object all succeed.
pub const UPDATE_ATTEMPTS_MAX: u32 = 1000;

impl Default for UpdateLimits {
    fn default() -> Self {
        UpdateLimits { attempts: UPDATE_ATTEMPTS_MAX }
    }
}

/// The next action of an [`UpdateLoop`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read the key linearizably; report the result with [`UpdateLoop::read`].
    Read,
    /// Decide on this state; report the result with [`UpdateLoop::decided`].
    Decide(Option<KeyValue>),
    /// Create the key; report the result with [`UpdateLoop::created`].
    Create {
        /// The value to write.
        value: Bytes,
        /// The TTL of the value; `None` for no TTL.
        ttl: Option<Duration>,
    },
    /// Update the key; report the result with [`UpdateLoop::updated`].
    Update {
        /// The expected revision of the key.
        expected: Revision,
        /// The value to write.
        value: Bytes,
        /// The TTL of the value; `None` for no TTL.
        ttl: Option<Duration>,
    },
    /// Delete the key; report the result with [`UpdateLoop::deleted`].
    Delete {
        /// The expected revision of the key.
        expected: Revision,
    },
}

/// The state machine of an update. `E` is the caller's own error.
///
/// Call [`UpdateLoop::step`], perform the step, and report the result with the method that the step
/// names, until that method returns the outcome. Unexpected reports are ignored.
#[derive(Debug)]
pub struct UpdateLoop<E> {
    key: Key,
    limits: UpdateLimits,
    /// The number of conflicts so far; at most `limits.attempts`.
    lost: u32,
    state: State<E>,
}

/// A state of the key, which was read or only suggested.
#[derive(Clone, Debug)]
struct Base {
    found: Option<KeyValue>,
    proven: bool,
}

#[derive(Debug)]
enum State<E> {
    /// The state is unknown.
    Unread,
    /// The caller decides on this state.
    Deciding(Base),
    /// The caller rejected or did not change a suggested state, which may be stale. A read confirms
    /// the result if the state is current.
    Proving { suggested: Revision, refusal: Option<E> },
    /// A write is in progress.
    Writing { base: Option<KeyValue>, decision: Decision },
    /// The result was returned.
    Done,
}

/// The result, if a report completed the update.
type LoopResult<E> = Option<Result<Outcome, GuaranteedUpdateError<E>>>;

impl<E> UpdateLoop<E> {
    /// Begins an update. `suggestion` is a recent state from a cache, which saves the first read;
    /// `None` means unknown, not absent.
    pub fn new(key: Key, suggestion: Option<KeyValue>, limits: UpdateLimits) -> Self {
        let state = match suggestion {
            Some(suggested) => State::Deciding(Base { found: Some(suggested), proven: false }),
            None => State::Unread,
        };
        UpdateLoop { key, limits, lost: 0, state }
    }

    /// Begins with the assumption that the key is absent. The first step is [`Step::Decide`] without a state, and a
    /// rejection of that state is final without a read. If the key exists, the create fails and the loop continues
    /// with the existing state.
    pub fn assuming_absent(key: Key, limits: UpdateLimits) -> Self {
        UpdateLoop { key, limits, lost: 0, state: State::Deciding(Base { found: None, proven: true }) }
    }

    /// The next action; `None` when the result was returned.
    pub fn step(&self) -> Option<Step> {
        Some(match &self.state {
            State::Unread | State::Proving { .. } => Step::Read,
            State::Deciding(base) => Step::Decide(base.found.clone()),
            State::Writing { base: None, decision: Decision::Write { value, ttl } } => {
                Step::Create { value: value.clone(), ttl: *ttl }
            }
            State::Writing { base: Some(base), decision: Decision::Write { value, ttl } } => {
                Step::Update { expected: base.modified, value: value.clone(), ttl: *ttl }
            }
            State::Writing { base: Some(base), .. } => Step::Delete { expected: base.modified },
            State::Writing { base: None, .. } | State::Done => return None,
        })
    }

    /// Reports the result of [`Step::Read`].
    pub fn read(&mut self, result: Result<Option<KeyValue>, ReadError>) -> LoopResult<E> {
        let found = match result {
            Ok(found) => found,
            Err(ReadError::Fault(fault)) => return self.done(Err(GuaranteedUpdateError::Fault(fault))),
            // A read of the latest state is neither compacted nor in the future.
            Err(other) => {
                return self.done(Err(GuaranteedUpdateError::Fault(StoreFault::Corrupt(other.to_string()))));
            }
        };
        match std::mem::replace(&mut self.state, State::Done) {
            State::Proving { suggested, refusal } if found.as_ref().is_some_and(|now| now.modified == suggested) => {
                match refusal {
                    Some(error) => Some(Err(GuaranteedUpdateError::Refused(error))),
                    // A suggestion cannot know that the store must write the value again.
                    None if found.as_ref().is_some_and(|now| now.stale) => {
                        self.state = State::Deciding(Base { found, proven: true });
                        None
                    }
                    None => Some(Ok(Outcome::Unchanged(found))),
                }
            }
            State::Unread | State::Proving { .. } => {
                self.state = State::Deciding(Base { found, proven: true });
                None
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Reports the result of [`Step::Decide`].
    pub fn decided(&mut self, decision: Result<Decision, E>) -> LoopResult<E> {
        let base = match std::mem::replace(&mut self.state, State::Done) {
            State::Deciding(base) => base,
            other => {
                self.state = other;
                return None;
            }
        };
        // A suggestion is always a state of an existing key.
        let suggested = base.found.as_ref().filter(|_| !base.proven).map(|found| found.modified);
        let decision = match (decision, suggested) {
            (Err(error), Some(suggested)) => {
                self.state = State::Proving { suggested, refusal: Some(error) };
                return None;
            }
            (Err(error), None) => return Some(Err(GuaranteedUpdateError::Refused(error))),
            (Ok(decision), _) => decision,
        };
        let changes = match (&decision, &base.found) {
            (Decision::Nothing, _) | (Decision::Delete, None) => false,
            (Decision::Write { value, .. }, Some(found)) => found.stale || *value != found.value,
            (Decision::Write { .. }, None) | (Decision::Delete, Some(_)) => true,
        };
        if changes {
            self.state = State::Writing { base: base.found, decision };
            return None;
        }
        match suggested {
            Some(suggested) => {
                self.state = State::Proving { suggested, refusal: None };
                None
            }
            None => Some(Ok(Outcome::Unchanged(base.found))),
        }
    }

    /// Reports the result of [`Step::Create`].
    pub fn created(&mut self, result: Result<Revision, CreateError>) -> LoopResult<E> {
        let State::Writing { base: None, decision: Decision::Write { value, .. } } = &self.state else { return None };
        match result {
            Ok(revision) => {
                let value = value.clone();
                let current =
                    KeyValue { key: self.key.clone(), value, created: revision, modified: revision, stale: false };
                self.done(Ok(Outcome::Created(current)))
            }
            Err(CreateError::AlreadyExists { current, .. }) => self.again(Some(current)),
            Err(CreateError::Fault(StoreFault::Unavailable(_))) if canary!("storage-repeats-unanswered-creates") => {
                None
            }
            Err(CreateError::Fault(fault)) => self.done(Err(GuaranteedUpdateError::Fault(fault))),
        }
    }

    /// Reports the result of [`Step::Update`].
    pub fn updated(&mut self, result: Result<Revision, UpdateError>) -> LoopResult<E> {
        let State::Writing { base: Some(base), decision: Decision::Write { value, .. } } = &self.state else {
            return None;
        };
        match result {
            Ok(modified) => {
                let previous = base.clone();
                let (key, created) = (self.key.clone(), previous.created);
                let current = KeyValue { key, value: value.clone(), created, modified, stale: false };
                self.done(Ok(Outcome::Updated { current, previous }))
            }
            Err(UpdateError::Conflict { current: Some(current) }) if canary!("storage-overwrites-on-conflict") => {
                let decision = Decision::Write { value: value.clone(), ttl: None };
                self.state = State::Writing { base: Some(current), decision };
                None
            }
            Err(UpdateError::Conflict { current }) => self.again(current),
            Err(UpdateError::Fault(fault)) => self.done(Err(GuaranteedUpdateError::Fault(fault))),
        }
    }

    /// Reports the result of [`Step::Delete`].
    pub fn deleted(&mut self, result: Result<Revision, DeleteError>) -> LoopResult<E> {
        let State::Writing { base: Some(base), decision: Decision::Delete } = &self.state else { return None };
        match result {
            Ok(revision) => {
                let previous = base.clone();
                self.done(Ok(Outcome::Deleted { previous, revision }))
            }
            Err(DeleteError::Conflict { current }) => self.again(current),
            Err(DeleteError::Fault(StoreFault::Unavailable(_)))
                if canary!("storage-acknowledges-unanswered-deletes") =>
            {
                let (previous, revision) = (base.clone(), base.modified);
                self.done(Ok(Outcome::Deleted { previous, revision }))
            }
            Err(DeleteError::Fault(fault)) => self.done(Err(GuaranteedUpdateError::Fault(fault))),
        }
    }

    /// Handles a conflict, for which the store returned the current state.
    fn again(&mut self, found: Option<KeyValue>) -> LoopResult<E> {
        self.lost += 1;
        if self.lost >= self.limits.attempts {
            return self.done(Err(GuaranteedUpdateError::Contended { attempts: self.lost }));
        }
        self.state = State::Deciding(Base { found, proven: true });
        None
    }

    fn done(&mut self, result: Result<Outcome, GuaranteedUpdateError<E>>) -> LoopResult<E> {
        self.state = State::Done;
        Some(result)
    }
}

/// Changes one key by `decide`, despite concurrent writes: Kubernetes' `GuaranteedUpdate`.
///
/// `decide` gets the key's state (`None` if absent) and may be called several times; its result should depend only on
/// that state. `decide` also checks preconditions (uid, resourceVersion): a rejection of a suggested state is confirmed
/// on the current state. `suggestion` is a cached, possibly stale state that saves the first read.
///
/// # Errors
/// See [`GuaranteedUpdateError`].
///
/// # Example
/// ```
/// use listwatch_meta::Key;
/// use listwatch_storage::{Decision, MemoryStorage, Outcome, Storage, UpdateLimits, guaranteed_update};
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = MemoryStorage::new();
/// let key = Key::new("configmaps", Some("default"), "counter")?;
/// store.create(&key, "1".into(), None).await?;
///
/// let outcome = guaranteed_update(&*store, &key, None, UpdateLimits::default(), |current| {
///     let current = current.ok_or("there is no counter")?;
///     let count: u64 = std::str::from_utf8(&current.value).unwrap().parse().unwrap();
///     Ok::<_, &'static str>(Decision::Write { value: (count + 1).to_string().into(), ttl: None })
/// })
/// .await?;
/// assert!(matches!(outcome, Outcome::Updated { current, .. } if current.value == "2"));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn guaranteed_update<S, E>(
    storage: &S,
    key: &Key,
    suggestion: Option<KeyValue>,
    limits: UpdateLimits,
    mut decide: impl FnMut(Option<&KeyValue>) -> Result<Decision, E>,
) -> Result<Outcome, GuaranteedUpdateError<E>>
where
    S: Storage + ?Sized,
{
    let mut update = UpdateLoop::new(key.clone(), suggestion, limits);
    loop {
        let outcome = match update.step().expect("the loop ends with the answer that holds the result") {
            Step::Read => update.read(storage.get(key).await.map(|(found, _)| found)),
            Step::Decide(current) => update.decided(decide(current.as_ref())),
            Step::Create { value, ttl } => update.created(storage.create(key, value, ttl).await),
            Step::Update { expected, value, ttl } => update.updated(storage.update(key, expected, value, ttl).await),
            Step::Delete { expected } => update.deleted(storage.delete(key, expected).await),
        };
        if let Some(result) = outcome {
            return result;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStorage;
    use std::fmt::Write as _;

    fn key() -> Key {
        Key::new("pods", Some("default"), "web").unwrap()
    }

    fn at(revision: u64, value: &str) -> KeyValue {
        let modified = Revision::new(revision);
        KeyValue {
            key: key(),
            value: Bytes::copy_from_slice(value.as_bytes()),
            created: Revision::new(2),
            modified,
            stale: false,
        }
    }

    /// Runs the state machine against a store with concurrent writes, and returns its actions.
    ///
    /// `truth` is the sequence of the key's states: each write attempt finds the next one, until
    /// the last, which stays. `want` is the value to write (`-` deletes, `=` does nothing), and
    /// `refuse` the value that the caller rejects.
    fn check(suggestion: Option<KeyValue>, truth: &[Option<KeyValue>], want: &str, refuse: &str, expected: &str) {
        let mut update = UpdateLoop::new(key(), suggestion, UpdateLimits { attempts: 3 });
        let mut truth = truth.iter().cloned().peekable();
        let mut trace = String::new();
        let result = loop {
            let present = truth.peek().cloned().flatten();
            let modified = present.as_ref().map(|found| found.modified);
            let next = Revision::new(100);
            let outcome = match update.step().unwrap() {
                Step::Read => {
                    trace.push_str("read ");
                    update.read(Ok(present))
                }
                Step::Decide(found) => {
                    let seen = found.as_ref().map_or("none", |found| std::str::from_utf8(&found.value).unwrap());
                    write!(trace, "decide({seen}) ").unwrap();
                    update.decided(match want {
                        _ if seen == refuse => Err(()),
                        "-" => Ok(Decision::Delete),
                        "=" => Ok(Decision::Nothing),
                        value => Ok(Decision::Write { value: Bytes::copy_from_slice(value.as_bytes()), ttl: None }),
                    })
                }
                Step::Create { .. } => {
                    trace.push_str("create ");
                    update.created(match present {
                        None => Ok(next),
                        Some(current) => Err(CreateError::AlreadyExists { key: key(), current }),
                    })
                }
                Step::Update { expected, .. } => {
                    trace.push_str("update ");
                    let fits = modified == Some(expected);
                    update.updated(if fits { Ok(next) } else { Err(UpdateError::Conflict { current: present }) })
                }
                Step::Delete { expected } => {
                    trace.push_str("delete ");
                    let fits = modified == Some(expected);
                    update.deleted(if fits { Ok(next) } else { Err(DeleteError::Conflict { current: present }) })
                }
            };
            // Another client writes between two steps.
            if truth.len() > 1 && !trace.ends_with(") ") {
                truth.next();
            }
            if let Some(result) = outcome {
                break result;
            }
        };
        trace.push_str(match &result {
            Ok(Outcome::Created(_)) => "-> created",
            Ok(Outcome::Updated { .. }) => "-> updated",
            Ok(Outcome::Deleted { .. }) => "-> deleted",
            Ok(Outcome::Unchanged(_)) => "-> unchanged",
            Err(GuaranteedUpdateError::Refused(())) => "-> refused",
            Err(GuaranteedUpdateError::Contended { .. }) => "-> contended",
            Err(GuaranteedUpdateError::Fault(_)) => "-> fault",
        });
        assert_eq!(trace, expected);
        assert_eq!(update.step(), None, "nothing is left to do after the result");
    }

    #[test]
    fn update_with_current_suggestion_reads_nothing() {
        let a = at(5, "a");
        check(Some(a.clone()), &[Some(a.clone())], "b", "", "decide(a) update -> updated");
        check(Some(a.clone()), &[Some(a.clone())], "-", "", "decide(a) delete -> deleted");
        check(None, &[Some(a)], "b", "", "read decide(a) update -> updated");
        check(None, &[None], "b", "", "read decide(none) create -> created");
    }

    #[test]
    fn update_retries_on_the_state_that_a_conflict_returned() {
        let (a, b) = (at(5, "a"), at(6, "b"));
        check(Some(a.clone()), &[Some(b.clone())], "c", "", "decide(a) update decide(b) update -> updated");
        check(Some(a.clone()), &[None], "c", "", "decide(a) update decide(none) create -> created");
        check(Some(a), &[Some(b.clone())], "-", "", "decide(a) delete decide(b) delete -> deleted");
        check(None, &[None, Some(b)], "c", "", "read decide(none) create decide(b) update -> updated");
    }

    #[test]
    fn rejection_of_a_suggestion_is_confirmed_by_a_read() {
        let (a, b) = (at(5, "a"), at(6, "b"));
        check(Some(a.clone()), &[Some(b.clone())], "c", "a", "decide(a) read decide(b) update -> updated");
        check(Some(a.clone()), &[Some(a.clone())], "c", "a", "decide(a) read -> refused");
        check(Some(a.clone()), &[None], "c", "none", "decide(a) update decide(none) -> refused");
        check(Some(a.clone()), &[None], "c", "a", "decide(a) read decide(none) create -> created");
        check(None, &[Some(a)], "c", "a", "read decide(a) -> refused");
    }

    #[test]
    fn unchanged_value_is_not_written() {
        let (a, b, later) = (at(5, "a"), at(6, "b"), at(7, "a"));
        check(None, &[Some(a.clone())], "a", "", "read decide(a) -> unchanged");
        check(None, &[None], "-", "", "read decide(none) -> unchanged");
        check(Some(a.clone()), &[Some(a.clone())], "a", "", "decide(a) read -> unchanged");
        check(Some(a.clone()), &[Some(a.clone())], "=", "", "decide(a) read -> unchanged");
        check(Some(a.clone()), &[Some(b)], "a", "", "decide(a) read decide(b) update -> updated");
        check(Some(a), &[Some(later)], "a", "", "decide(a) read decide(a) -> unchanged");
    }

    #[test]
    fn update_fails_as_contended_at_the_attempt_limit() {
        let states: Vec<_> = (5..20).map(|revision| Some(at(revision, &format!("v{revision}")))).collect();
        check(None, &states, "x", "", "read decide(v5) update decide(v6) update decide(v7) update -> contended");
    }

    #[test]
    fn store_fault_ends_the_update() {
        let mut update = UpdateLoop::<()>::new(key(), None, UpdateLimits::default());
        let outcome = update.read(Err(StoreFault::Closed.into()));
        assert_eq!(outcome, Some(Err(GuaranteedUpdateError::Fault(StoreFault::Closed))));
        assert_eq!(update.step(), None);
    }

    #[test]
    fn fault_of_a_write_ends_the_update_and_is_not_retried() {
        let unavailable = || StoreFault::Unavailable("no answer".to_owned());
        let check = |found: Option<KeyValue>, decision: Decision, step: fn(&Step) -> bool| {
            let mut update = UpdateLoop::<()>::new(key(), None, UpdateLimits::default());
            assert_eq!(update.read(Ok(found)), None);
            assert_eq!(update.decided(Ok(decision)), None);
            assert!(step(&update.step().unwrap()));
            let outcome = match update.step().unwrap() {
                Step::Create { .. } => update.created(Err(unavailable().into())),
                Step::Update { .. } => update.updated(Err(unavailable().into())),
                Step::Delete { .. } => update.deleted(Err(unavailable().into())),
                other => panic!("{other:?}"),
            };
            assert_eq!(outcome, Some(Err(GuaranteedUpdateError::Fault(unavailable()))), "the write may have happened");
            assert_eq!(update.step(), None);
        };
        let write = || Decision::Write { value: "b".into(), ttl: None };
        check(None, write(), |step| matches!(step, Step::Create { .. }));
        check(Some(at(5, "a")), write(), |step| matches!(step, Step::Update { .. }));
        check(Some(at(5, "a")), Decision::Delete, |step| matches!(step, Step::Delete { .. }));
    }

    /// A stale state has an outdated form in the store, for example under a former encryption key.
    #[test]
    fn stale_state_is_written_again_though_its_value_is_the_same() {
        let (a, b) = (at(5, "a"), at(5, "b"));
        let stale = |state: &KeyValue| KeyValue { stale: true, ..state.clone() };
        check(None, &[Some(stale(&a))], "a", "", "read decide(a) update -> updated");
        check(Some(a.clone()), &[Some(stale(&a))], "a", "", "decide(a) read decide(a) update -> updated");
        check(Some(stale(&a)), &[Some(stale(&a))], "a", "", "decide(a) update -> updated");
        check(Some(a.clone()), &[Some(stale(&a))], "=", "", "decide(a) read decide(a) -> unchanged");
        check(Some(a.clone()), &[Some(stale(&a))], "b", "a", "decide(a) read -> refused");
        check(Some(b), &[None], "=", "", "decide(b) read decide(none) -> unchanged");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn all_concurrent_updates_take_effect() {
        const WRITERS: usize = 16;
        const ROUNDS: usize = 25;
        let store = MemoryStorage::new();
        store.create(&key(), "0".into(), None).await.unwrap();
        let stale = store.get(&key()).await.unwrap().0;
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| {
                let (store, stale) = (store.clone(), stale.clone());
                tokio::spawn(async move {
                    for _ in 0..ROUNDS {
                        guaranteed_update(&*store, &key(), stale.clone(), UpdateLimits::default(), |current| {
                            let text = std::str::from_utf8(&current.ok_or(())?.value).unwrap();
                            let count: usize = text.parse().unwrap();
                            Ok::<_, ()>(Decision::Write { value: (count + 1).to_string().into(), ttl: None })
                        })
                        .await
                        .unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        let (found, _) = store.get(&key()).await.unwrap();
        assert_eq!(found.unwrap().value, (WRITERS * ROUNDS).to_string(), "no update was lost or done twice");
    }
}
