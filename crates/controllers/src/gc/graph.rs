//! [`Graph`]: the owner references of all objects, and the resulting jobs. The graph performs no I/O: the input is
//! facts of objects, results of jobs and the current time. The output is jobs.
//!
//! ```text
//!   begin_sync, handle_put …, end_sync     a list of the store
//!   handle_put, handle_delete              changes, in the store's order
//!   poll_job ─▶ Job ─▶ (live reads, a write) ─▶ handle_outcome
//! ```
//!
//! The graph remembers only references. An object without owners costs no memory unless the object waits for its
//! dependents.
//!
//! Dependents in one namespace that describe an owner with the same fields share one [`Claim`]. One live read verifies
//! the claim when its first dependent appears. The graph therefore works even if it has received no event of the owner.
//! A reference with the right uid but another kind, name or namespace is treated like a reference to an absent owner.
//!
//! Correctness depends on the single order of the store's events. The event that marks a foreground deletion
//! follows the events of all references that existed at that time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use listwatch_meta::Key;

use super::facts::{DeletionState, Facts};
use super::work_queue::{Outcome, WorkQueue};

/// An owner as described by the references of dependents in one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// The namespace of the dependents, `""` for cluster-scoped dependents. An owner of a namespaced kind must be in
    /// the same namespace.
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: Arc<str>,
}

/// A job to be done outside the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Check whether the owner exists.
    Verify(Arc<Claim>),
    /// Check the owners of the object. Delete the object or remove references to absent owners, as the result requires.
    Examine {
        key: Key,
        uid: Arc<str>,
        /// True if other objects refer to this object as their owner.
        owns: bool,
    },
    /// Remove the collector's finalizer, because the object no longer waits for its dependents.
    Release { key: Key, uid: Arc<str>, deletion_state: DeletionState },
    /// Remove the references to the object from these dependents.
    Orphan { key: Key, uid: Arc<str>, dependents: Vec<Key> },
}

impl Job {
    fn task(&self) -> Task {
        match self {
            Job::Verify(claim) => Task::Verify(Arc::clone(claim)),
            Job::Examine { key, .. } => Task::Examine(key.clone()),
            Job::Release { key, .. } | Job::Orphan { key, .. } => Task::Tend(key.clone()),
        }
    }
}

/// The result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The job succeeded; its changes arrive as events.
    Done,
    /// The job failed and is retried later.
    Again,
    /// [`Job::Verify`]: the owner exists, or the reference is invalid and is ignored.
    Present {
        /// True if the owner is in the namespace of its dependents, false if the owner is cluster-scoped.
        namespaced: bool,
    },
    /// [`Job::Verify`]: the owner does not exist.
    Absent,
}

/// A dependent whose owner is in another namespace. The collector reports the dependent in an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CrossNamespaceReference {
    pub(super) key: Key,
    pub(super) claim: Arc<Claim>,
}

/// Maximum number of dependents in one [`Job::Orphan`]; further dependents get another job.
pub(super) const ORPHANS_AT_ONCE: usize = 256;

/// An entry of the work queue. The arguments of the job are computed when the job starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Task {
    Verify(Arc<Claim>),
    Examine(Key),
    /// Check the dependents of an object that waits for them.
    Tend(Key),
}

/// An object that has owners or waits for its dependents.
struct Node {
    uid: Arc<str>,
    deletion_state: DeletionState,
    /// The claim of each owner reference, and its `blockOwnerDeletion`.
    owners: Box<[(Arc<Claim>, bool)]>,
    /// Sequence number of the last list that contained the object.
    epoch: u32,
}

#[derive(Default)]
struct Owner {
    dependents: HashSet<Key>,
    /// Whether a live read found no owner with this uid. The result stays valid, because uids are never reused.
    absent: bool,
    /// True if the dependents have been reported as cross-namespace references.
    is_reported: bool,
}

/// Claims and location of a uid that dependents refer to.
#[derive(Default)]
struct ReferredOwner {
    /// The claims with this uid; usually one.
    claims: Vec<Arc<Claim>>,
    /// The last known namespace of the object with this uid; `""` for a cluster-scoped object.
    seat: Option<Box<str>>,
}

/// The owner references of all objects. See the module documentation.
#[derive(Default)]
pub(super) struct Graph {
    nodes: HashMap<Key, Node>,
    owners: HashMap<Arc<Claim>, Owner>,
    by_uid: HashMap<Arc<str>, ReferredOwner>,
    /// The objects that wait for their dependents, by uid.
    waiting: HashMap<Arc<str>, Key>,
    work_queue: WorkQueue<Task>,
    cross_namespace_references: VecDeque<CrossNamespaceReference>,
    epoch: u32,
    synced: bool,
}

impl Graph {
    /// Starts a list of the whole store. Call [`Graph::handle_put`] for each object, then [`Graph::end_sync`]. No
    /// job is returned before the end of the list.
    pub(super) fn begin_sync(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.synced = false;
    }

    /// Ends a list. Removes the objects that the list did not contain. Verifies all claims again, because the graph may
    /// have missed the creation and deletion of an owner.
    pub(super) fn end_sync(&mut self) {
        let epoch = self.epoch;
        let gone: Vec<Key> =
            self.nodes.iter().filter(|(_, node)| node.epoch != epoch).map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.handle_delete(&key, None);
        }
        for claim in self.owners.keys() {
            self.work_queue.add(&Task::Verify(Arc::clone(claim)));
        }
        for key in self.waiting.values() {
            self.work_queue.add(&Task::Tend(key.clone()));
        }
        self.synced = true;
    }

    /// Records that an object was created or changed. `namespace` is `""` for a cluster-scoped object.
    pub(super) fn handle_put(&mut self, key: &Key, namespace: &str, facts: Facts) {
        if self.nodes.get(key).is_some_and(|node| *node.uid != *facts.uid) {
            self.handle_delete(key, None);
        }
        let deletion_state = facts.deletion_state();
        if let Some(referred) = self.by_uid.get_mut(facts.uid.as_str()) {
            referred.seat = Some(namespace.into());
        }
        let waits = matches!(deletion_state, DeletionState::Orphaning | DeletionState::Foreground);
        let uid: Arc<str> = match self.nodes.get(key) {
            Some(node) => Arc::clone(&node.uid),
            None if facts.owners.is_empty() && !waits => return,
            None => facts.uid.as_str().into(),
        };
        let owners: Box<[(Arc<Claim>, bool)]> = facts
            .owners
            .into_iter()
            .map(|owner| {
                let claim = Claim {
                    api_version: owner.api_version,
                    kind: owner.kind,
                    namespace: namespace.to_owned(),
                    name: owner.name,
                    uid: owner.uid.into(),
                };
                (self.shared(claim), owner.blocks)
            })
            .collect();

        let (was, former) = match self.nodes.remove(key) {
            Some(node) => (node.deletion_state, node.owners),
            None => (DeletionState::Alive, Box::default()),
        };
        let keeps = |claim: &Arc<Claim>| owners.iter().any(|(kept, _)| kept == claim);
        for (claim, blocked) in &former {
            if !keeps(claim) {
                self.unlink(key, claim);
            } else if *blocked && !owners.iter().any(|(kept, blocks)| kept == claim && *blocks) {
                self.wake(&claim.uid);
            }
        }
        for (claim, _) in &owners {
            self.link(key, claim);
        }

        let untracked = owners.is_empty() && !waits;
        if waits {
            self.waiting.insert(Arc::clone(&uid), key.clone());
        } else {
            self.waiting.remove(&uid);
        }
        if !untracked {
            let node = Node { uid: Arc::clone(&uid), deletion_state, owners, epoch: self.epoch };
            self.nodes.insert(key.clone(), node);
        }
        if waits && was != deletion_state {
            if deletion_state == DeletionState::Foreground {
                // Dependents that do not block the deletion are deleted as well.
                self.examine_dependents(&uid);
            }
            self.work_queue.add(&Task::Tend(key.clone()));
        }
    }

    /// Records that the value at this key is unreadable. The known references of the object are kept.
    pub(super) fn handle_unreadable(&mut self, key: &Key) {
        if let Some(node) = self.nodes.get_mut(key) {
            node.epoch = self.epoch;
        }
    }

    /// Records that an object was deleted. `uid` is the uid of the object's last state, if known.
    pub(super) fn handle_delete(&mut self, key: &Key, uid: Option<&str>) {
        let node = self.nodes.remove(key);
        let uid = node.as_ref().map(|node| &*node.uid).or(uid);
        if let Some(node) = &node {
            self.waiting.remove(&node.uid);
            for (claim, _) in &node.owners {
                self.unlink(key, claim);
            }
        }
        match uid {
            Some(uid) => self.owner_gone(uid),
            // The uid of the deleted object is unknown, so every claim that could have meant the object is
            // verified.
            None => {
                for claim in self.owners.keys().filter(|claim| claim.name == key.name()) {
                    self.work_queue.add(&Task::Verify(Arc::clone(claim)));
                }
            }
        }
    }

    fn owner_gone(&mut self, uid: &str) {
        let Some(referred) = self.by_uid.get_mut(uid) else { return };
        referred.seat = None;
        for claim in &referred.claims {
            if let Some(owner) = self.owners.get_mut(claim) {
                owner.absent = true;
            }
        }
        self.examine_dependents(uid);
    }

    fn examine_dependents(&mut self, uid: &str) {
        let Some(referred) = self.by_uid.get(uid) else { return };
        for owner in referred.claims.iter().filter_map(|claim| self.owners.get(claim)) {
            for key in &owner.dependents {
                self.work_queue.add(&Task::Examine(key.clone()));
            }
        }
    }

    /// Returns the existing claim that equals `claim`, so that all dependents share one allocation.
    fn shared(&self, claim: Claim) -> Arc<Claim> {
        match self.owners.get_key_value(&claim) {
            Some((claim, _)) => Arc::clone(claim),
            None => match self.by_uid.get_key_value(&claim.uid) {
                Some((uid, _)) => Arc::new(Claim { uid: Arc::clone(uid), ..claim }),
                None => Arc::new(claim),
            },
        }
    }

    fn link(&mut self, key: &Key, claim: &Arc<Claim>) {
        if let Some(owner) = self.owners.get_mut(claim) {
            if owner.dependents.insert(key.clone()) && (owner.absent || self.waiting.contains_key(&claim.uid)) {
                self.work_queue.add(&Task::Examine(key.clone()));
            }
            return;
        }
        self.owners.insert(Arc::clone(claim), Owner { dependents: HashSet::from([key.clone()]), ..Owner::default() });
        self.by_uid.entry(Arc::clone(&claim.uid)).or_default().claims.push(Arc::clone(claim));
        self.work_queue.add(&Task::Verify(Arc::clone(claim)));
        if self.waiting.contains_key(&claim.uid) {
            self.work_queue.add(&Task::Examine(key.clone()));
        }
    }

    fn unlink(&mut self, key: &Key, claim: &Arc<Claim>) {
        let Some(owner) = self.owners.get_mut(claim) else { return };
        owner.dependents.remove(key);
        if owner.dependents.is_empty() {
            self.owners.remove(claim);
            if let Some(referred) = self.by_uid.get_mut(&claim.uid) {
                referred.claims.retain(|other| other != claim);
                if referred.claims.is_empty() {
                    self.by_uid.remove(&claim.uid);
                }
            }
        }
        self.wake(&claim.uid);
    }

    /// Schedules the waiting owner with this uid after a dependent was removed or no longer blocks.
    fn wake(&mut self, uid: &str) {
        if let Some(key) = self.waiting.get(uid) {
            self.work_queue.add(&Task::Tend(key.clone()));
        }
    }

    /// Returns the next job to start. The caller reports the job's end to [`Graph::handle_outcome`].
    pub(super) fn poll_job(&mut self, now: Instant) -> Option<Job> {
        if !self.synced {
            return None;
        }
        loop {
            let task = self.work_queue.pop(now)?;
            match self.job_of(&task) {
                Some(job) => return Some(job),
                None => self.work_queue.finish(&task, Outcome::Done, now),
            }
        }
    }

    fn job_of(&mut self, task: &Task) -> Option<Job> {
        match task {
            Task::Verify(claim) => self.owners.contains_key(claim).then(|| Job::Verify(Arc::clone(claim))),
            Task::Examine(key) => {
                let node = self.nodes.get(key)?;
                // An object that is being deleted needs no examination: a deletion cannot be undone.
                (node.deletion_state == DeletionState::Alive && !node.owners.is_empty()).then(|| Job::Examine {
                    key: key.clone(),
                    uid: Arc::clone(&node.uid),
                    owns: self.by_uid.contains_key(&node.uid),
                })
            }
            Task::Tend(key) => {
                let node = self.nodes.get(key)?;
                let (key, uid, deletion_state) = (key.clone(), Arc::clone(&node.uid), node.deletion_state);
                match deletion_state {
                    DeletionState::Alive | DeletionState::Dying => None,
                    DeletionState::Orphaning => {
                        let dependents: Vec<Key> = self.dependents(&uid).take(ORPHANS_AT_ONCE).cloned().collect();
                        Some(match dependents.is_empty() {
                            true => Job::Release { key, uid, deletion_state },
                            false => Job::Orphan { key, uid, dependents },
                        })
                    }
                    DeletionState::Foreground => match self.blocker(&key, &uid) {
                        None => Some(Job::Release { key, uid, deletion_state }),
                        Some(blocker) => {
                            // Earlier dependents were examined when the wait began; this covers later ones.
                            let blocker = blocker.clone();
                            self.work_queue.add(&Task::Examine(blocker));
                            None
                        }
                    },
                }
            }
        }
    }

    fn dependents(&self, uid: &str) -> impl Iterator<Item = &Key> {
        let claims = self.by_uid.get(uid).map(|referred| referred.claims.as_slice()).unwrap_or_default();
        claims.iter().filter_map(|claim| self.owners.get(claim)).flat_map(|owner| &owner.dependents)
    }

    /// Returns the dependents that block a foreground deletion of the owner with this uid.
    fn blocking(&self, uid: &str) -> impl Iterator<Item = &Key> {
        self.dependents(uid).filter(move |key| {
            let owners = self.nodes.get(*key).map(|node| &node.owners[..]).unwrap_or_default();
            owners.iter().any(|(claim, blocks)| *blocks && *claim.uid == *uid)
        })
    }

    /// Returns a dependent that a foreground deletion of the object must wait for. Skips dependents that themselves
    /// wait for the object, because a cycle would otherwise never end.
    fn blocker(&self, key: &Key, uid: &str) -> Option<&Key> {
        self.blocking(uid).find(|dependent| !self.waits_for(dependent, key))
    }

    fn waits_for(&self, from: &Key, wanted: &Key) -> bool {
        let (mut seen, mut left) = (HashSet::from([from]), vec![from]);
        while let Some(key) = left.pop() {
            if key == wanted {
                return true;
            }
            let Some(node) = self.nodes.get(key).filter(|node| node.deletion_state == DeletionState::Foreground) else {
                continue;
            };
            left.extend(self.blocking(&node.uid).filter(|next| seen.insert(next)));
        }
        false
    }

    /// Records the result of a job.
    pub(super) fn handle_outcome(&mut self, job: &Job, report: Report, now: Instant) {
        let outcome = if report == Report::Again { Outcome::Again } else { Outcome::Done };
        match (job, report) {
            (Job::Verify(claim), Report::Absent) => self.claim_absent(claim),
            (Job::Verify(claim), Report::Present { namespaced: true }) => {
                if let Some(referred) = self.by_uid.get_mut(&claim.uid) {
                    referred.seat = Some(claim.namespace.as_str().into());
                }
            }
            _ => {}
        }
        let task = job.task();
        self.work_queue.finish(&task, outcome, now);
        if let (Job::Orphan { uid, dependents, .. }, Report::Done) = (job, report)
            && dependents.len() == ORPHANS_AT_ONCE
            && self.waiting.contains_key(uid)
        {
            self.work_queue.add(&task);
        }
    }

    fn claim_absent(&mut self, claim: &Arc<Claim>) {
        let seat = self.by_uid.get(&claim.uid).and_then(|referred| referred.seat.clone());
        let Some(owner) = self.owners.get_mut(claim) else { return };
        owner.absent = true;
        let elsewhere = seat.is_some_and(|seat| !seat.is_empty() && *seat != *claim.namespace) && !owner.is_reported;
        for key in &owner.dependents {
            self.work_queue.add(&Task::Examine(key.clone()));
            if elsewhere {
                self.cross_namespace_references
                    .push_back(CrossNamespaceReference { key: key.clone(), claim: Arc::clone(claim) });
            }
        }
        owner.is_reported |= elsewhere;
    }

    /// Returns the next dependent whose owner is in another namespace. The graph knows the namespace of an owner in two
    /// cases: another reference to the owner is valid, or the owner changed while it had references.
    pub(super) fn poll_cross_namespace_reference(&mut self) -> Option<CrossNamespaceReference> {
        self.cross_namespace_references.pop_front()
    }

    /// Returns the earliest time at which [`Graph::poll_job`] may return a job.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        self.work_queue.due(now).filter(|_| self.synced)
    }

    /// Returns the number of objects and the number of claims in the graph.
    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.nodes.len(), self.owners.len())
    }
}

/// The result of a live read of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// The owner exists.
    Solid,
    /// No object with this uid exists at the path in the reference.
    Absent,
    /// The owner exists and waits in a foreground deletion until its dependents are deleted.
    Waiting,
    /// A cluster-scoped dependent refers to an owner of a namespaced kind. The owner cannot be looked up, and a
    /// retry would not help.
    Invalid,
    /// The existence is unknown: the kind is not served now, or the stored value is unreadable.
    Unknown,
}

/// The action for a dependent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DependentAction {
    /// Leave the dependent unchanged.
    Leave,
    /// Retry later, because the existence of an owner is unknown.
    Again,
    /// Remove the owner references at these positions and keep the dependent.
    Unlink(Vec<usize>),
    /// Delete the dependent in the foreground, after its own dependents.
    Foreground,
    /// Delete the dependent with the propagation policy that its finalizers select.
    Delete,
}

/// Chooses the action for a dependent from the states of its owners (`attemptToDeleteItem`). `owns` is true if
/// other objects refer to the dependent as their owner.
pub(super) fn decide_dependent(owner_states: &[OwnerState], owns: bool) -> DependentAction {
    for owner_state in owner_states {
        match owner_state {
            OwnerState::Invalid => return DependentAction::Leave,
            OwnerState::Unknown => return DependentAction::Again,
            OwnerState::Solid | OwnerState::Absent | OwnerState::Waiting => {}
        }
    }
    if owner_states.is_empty() {
        return DependentAction::Leave;
    }
    if owner_states.contains(&OwnerState::Solid) {
        let void: Vec<usize> =
            (0..owner_states.len()).filter(|position| owner_states[*position] != OwnerState::Solid).collect();
        return if void.is_empty() { DependentAction::Leave } else { DependentAction::Unlink(void) };
    }
    if owns && owner_states.contains(&OwnerState::Waiting) {
        DependentAction::Foreground
    } else {
        DependentAction::Delete
    }
}
