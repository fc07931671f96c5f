//! [`Graph`]: who is owned by whom, and what is to be done about it. Pure: facts of objects, results
//! of jobs and the time go in, jobs come out.
//!
//! ```text
//!   begin_sync, handle_put …, end_sync     what the store holds
//!   handle_put, handle_delete              what changes, in the store's order
//!   poll_job ─▶ Job ─▶ (live reads, a write) ─▶ handle_outcome
//! ```
//!
//! It remembers no objects, only references: an object that is owned by nobody and waits for nobody
//! costs nothing. Who refers to an owner in the same words from the same namespace makes the same
//! [`Claim`], and a claim is verified as a whole, by one read, when it is first made. So it does not
//! matter whether the owner was ever seen, and a reference whose words do not fit the owner of that
//! uid (another kind, another name, another namespace) is found out like one to an owner that is gone.
//!
//! Being right rests on the store's one order: when the mark on an object that is deleted in the
//! foreground comes by, everything that referred to it by then has come by before.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use listwatch_meta::Key;
use tokio::time::Instant;

use super::agenda::{Agenda, Outcome};
use super::facts::{Facts, Life};

/// An owner as dependents in one namespace describe it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// Where the dependents are, `""` for those of the cluster: an owner of a namespaced kind has to
    /// be there too.
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: Arc<str>,
}

/// Something to be done outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Find out whether the owner exists.
    Verify(Arc<Claim>),
    /// Find out whether the object has owners left, and act accordingly.
    Examine {
        key: Key,
        uid: Arc<str>,
        /// Others refer to it.
        owns: bool,
    },
    /// Take a finalizer of ours off the object: what it waited for has happened.
    Release { key: Key, uid: Arc<str>, life: Life },
    /// Take the references to the object off these.
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

/// What came out of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// It is done; what it changed comes by as an event.
    Done,
    /// It failed, and is to be tried again later.
    Again,
    /// [`Job::Verify`]: there is such an owner, or the reference is one that nobody acts upon.
    Present {
        /// The owner is where its dependents are, not of the cluster.
        namespaced: bool,
    },
    /// [`Job::Verify`]: there is no such owner.
    Absent,
}

/// A dependent in another namespace than its owner: worth an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stray {
    pub(super) key: Key,
    pub(super) claim: Arc<Claim>,
}

/// At most so many dependents are let go by one [`Job::Orphan`]; the others by the next one.
pub(super) const ORPHANS_AT_ONCE: usize = 256;

/// What the agenda holds: jobs by what they are about, for what they say is found out when they begin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Task {
    Verify(Arc<Claim>),
    Examine(Key),
    /// It waits for its dependents.
    Tend(Key),
}

/// An object with owners, or one that waits for its dependents.
struct Node {
    uid: Arc<str>,
    life: Life,
    /// What it says of its owners, and whether it blocks their deletion.
    owners: Box<[(Arc<Claim>, bool)]>,
    /// The list that has last shown it.
    epoch: u32,
}

#[derive(Default)]
struct Owner {
    dependents: HashSet<Key>,
    /// It is known not to exist, and uids do not come back.
    absent: bool,
    /// Its dependents were told of as strays.
    told: bool,
}

/// What is known about a uid that somebody refers to.
#[derive(Default)]
struct Referred {
    /// Mostly one.
    claims: Vec<Arc<Claim>>,
    /// The namespace in which the object of that uid was last seen; `""` for the cluster.
    seat: Option<Box<str>>,
}

/// See the page.
#[derive(Default)]
pub(super) struct Graph {
    nodes: HashMap<Key, Node>,
    owners: HashMap<Arc<Claim>, Owner>,
    by_uid: HashMap<Arc<str>, Referred>,
    /// The objects that wait for their dependents, by uid.
    waiting: HashMap<Arc<str>, Key>,
    agenda: Agenda<Task>,
    strays: VecDeque<Stray>,
    epoch: u32,
    synced: bool,
}

impl Graph {
    /// A list of everything begins: [`Graph::handle_put`] for each object, then
    /// [`Graph::end_sync`]. No job comes out before the end.
    pub(super) fn begin_sync(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.synced = false;
    }

    /// The list is complete: what it did not show is gone. All claims are verified again, for an owner
    /// may have come and gone unseen.
    pub(super) fn end_sync(&mut self) {
        let epoch = self.epoch;
        let gone: Vec<Key> =
            self.nodes.iter().filter(|(_, node)| node.epoch != epoch).map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.handle_delete(&key, None);
        }
        for claim in self.owners.keys() {
            self.agenda.add(&Task::Verify(Arc::clone(claim)));
        }
        for key in self.waiting.values() {
            self.agenda.add(&Task::Tend(key.clone()));
        }
        self.synced = true;
    }

    /// An object was created or changed. `namespace` is where it lives, `""` for the cluster.
    pub(super) fn handle_put(&mut self, key: &Key, namespace: &str, facts: Facts) {
        if self.nodes.get(key).is_some_and(|node| *node.uid != *facts.uid) {
            self.handle_delete(key, None);
        }
        let life = facts.life();
        if let Some(referred) = self.by_uid.get_mut(facts.uid.as_str()) {
            referred.seat = Some(namespace.into());
        }
        let waits = matches!(life, Life::Orphaning | Life::Foreground);
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
            Some(node) => (node.life, node.owners),
            None => (Life::Alive, Box::default()),
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
            let node = Node { uid: Arc::clone(&uid), life, owners, epoch: self.epoch };
            self.nodes.insert(key.clone(), node);
        }
        if waits && was != life {
            if life == Life::Foreground {
                // Those that do not block are asked to go as well.
                self.examine_dependents(&uid);
            }
            self.agenda.add(&Task::Tend(key.clone()));
        }
    }

    /// What is stored at this key cannot be read. What is remembered of it stays.
    pub(super) fn handle_unreadable(&mut self, key: &Key) {
        if let Some(node) = self.nodes.get_mut(key) {
            node.epoch = self.epoch;
        }
    }

    /// An object is gone. `uid` is what its last state said, where that is known.
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
            // Nobody knows which object that was: everything that could have referred to it is verified.
            None => {
                for claim in self.owners.keys().filter(|claim| claim.name == key.name()) {
                    self.agenda.add(&Task::Verify(Arc::clone(claim)));
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
                self.agenda.add(&Task::Examine(key.clone()));
            }
        }
    }

    /// The claim as it is remembered already, so that all who make it share one.
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
                self.agenda.add(&Task::Examine(key.clone()));
            }
            return;
        }
        self.owners.insert(Arc::clone(claim), Owner { dependents: HashSet::from([key.clone()]), ..Owner::default() });
        self.by_uid.entry(Arc::clone(&claim.uid)).or_default().claims.push(Arc::clone(claim));
        self.agenda.add(&Task::Verify(Arc::clone(claim)));
        if self.waiting.contains_key(&claim.uid) {
            self.agenda.add(&Task::Examine(key.clone()));
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

    /// Somebody no longer refers to this uid, or no longer blocks it.
    fn wake(&mut self, uid: &str) {
        if let Some(key) = self.waiting.get(uid) {
            self.agenda.add(&Task::Tend(key.clone()));
        }
    }

    /// The next job to begin; its end is told to [`Graph::handle_outcome`].
    pub(super) fn poll_job(&mut self, now: Instant) -> Option<Job> {
        if !self.synced {
            return None;
        }
        loop {
            let task = self.agenda.pop(now)?;
            match self.job_of(&task) {
                Some(job) => return Some(job),
                None => self.agenda.finish(&task, Outcome::Done, now),
            }
        }
    }

    fn job_of(&mut self, task: &Task) -> Option<Job> {
        match task {
            Task::Verify(claim) => self.owners.contains_key(claim).then(|| Job::Verify(Arc::clone(claim))),
            Task::Examine(key) => {
                let node = self.nodes.get(key)?;
                // Being deleted is a way without return.
                (node.life == Life::Alive && !node.owners.is_empty()).then(|| Job::Examine {
                    key: key.clone(),
                    uid: Arc::clone(&node.uid),
                    owns: self.by_uid.contains_key(&node.uid),
                })
            }
            Task::Tend(key) => {
                let node = self.nodes.get(key)?;
                let (key, uid, life) = (key.clone(), Arc::clone(&node.uid), node.life);
                match life {
                    Life::Alive | Life::Dying => None,
                    Life::Orphaning => {
                        let dependents: Vec<Key> = self.dependents(&uid).take(ORPHANS_AT_ONCE).cloned().collect();
                        Some(match dependents.is_empty() {
                            true => Job::Release { key, uid, life },
                            false => Job::Orphan { key, uid, dependents },
                        })
                    }
                    Life::Foreground => match self.blocker(&key, &uid) {
                        None => Some(Job::Release { key, uid, life }),
                        Some(blocker) => {
                            // It was asked to go when the wait began; this is for those that came later.
                            let blocker = blocker.clone();
                            self.agenda.add(&Task::Examine(blocker));
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

    /// Those that hold up the owner of this uid when it is deleted in the foreground.
    fn blocking(&self, uid: &str) -> impl Iterator<Item = &Key> {
        self.dependents(uid).filter(move |key| {
            let owners = self.nodes.get(*key).map(|node| &node.owners[..]).unwrap_or_default();
            owners.iter().any(|(claim, blocks)| *blocks && *claim.uid == *uid)
        })
    }

    /// A dependent for which an object deleted in the foreground still has to wait. One that itself
    /// waits, in the end, for that object does not count: in a ring somebody has to go first.
    fn blocker(&self, key: &Key, uid: &str) -> Option<&Key> {
        self.blocking(uid).find(|dependent| !self.waits_for(dependent, key))
    }

    fn waits_for(&self, from: &Key, wanted: &Key) -> bool {
        let (mut seen, mut left) = (HashSet::from([from]), vec![from]);
        while let Some(key) = left.pop() {
            if key == wanted {
                return true;
            }
            let Some(node) = self.nodes.get(key).filter(|node| node.life == Life::Foreground) else { continue };
            left.extend(self.blocking(&node.uid).filter(|next| seen.insert(next)));
        }
        false
    }

    /// A job has ended.
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
        self.agenda.finish(&task, outcome, now);
        if let (Job::Orphan { uid, dependents, .. }, Report::Done) = (job, report)
            && dependents.len() == ORPHANS_AT_ONCE
            && self.waiting.contains_key(uid)
        {
            self.agenda.add(&task);
        }
    }

    fn claim_absent(&mut self, claim: &Arc<Claim>) {
        let seat = self.by_uid.get(&claim.uid).and_then(|referred| referred.seat.clone());
        let Some(owner) = self.owners.get_mut(claim) else { return };
        owner.absent = true;
        let elsewhere = seat.is_some_and(|seat| !seat.is_empty() && *seat != *claim.namespace) && !owner.told;
        for key in &owner.dependents {
            self.agenda.add(&Task::Examine(key.clone()));
            if elsewhere {
                self.strays.push_back(Stray { key: key.clone(), claim: Arc::clone(claim) });
            }
        }
        owner.told |= elsewhere;
    }

    /// The next dependent that was found in another namespace than its owner. Only owners that others
    /// refer to rightly, or that changed since somebody refers to them, are known to be elsewhere; the
    /// reference is as void without.
    pub(super) fn poll_stray(&mut self) -> Option<Stray> {
        self.strays.pop_front()
    }

    /// When [`Graph::poll_job`] is worth a call.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        self.agenda.due(now).filter(|_| self.synced)
    }

    /// Objects and references that are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.nodes.len(), self.owners.len())
    }
}

/// What a live read says about one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// It exists.
    Solid,
    /// There is none of that uid at that place.
    Absent,
    /// It exists, and waits in the foreground until its dependents are gone.
    Waiting,
    /// The dependent belongs to the cluster and the owner's kind to namespaces: nothing that can be
    /// looked up, and nothing that another try would mend.
    Invalid,
    /// Nobody can tell: no such kind is served here, now, or what is stored cannot be read.
    Unknown,
}

/// What is to be done about a dependent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It stays as it is.
    Leave,
    /// Nobody can tell yet.
    Again,
    /// It stays, and these of its references go (their positions).
    Unlink(Vec<usize>),
    /// It goes, after those that it owns.
    Foreground,
    /// It goes, in the way that its finalizers ask for.
    Delete,
}

/// Judges a dependent by what was found about each of its owners (`attemptToDeleteItem`). `owns`:
/// others refer to it.
pub(super) fn judge(findings: &[Finding], owns: bool) -> Verdict {
    for finding in findings {
        match finding {
            Finding::Invalid => return Verdict::Leave,
            Finding::Unknown => return Verdict::Again,
            Finding::Solid | Finding::Absent | Finding::Waiting => {}
        }
    }
    if findings.is_empty() {
        return Verdict::Leave;
    }
    if findings.contains(&Finding::Solid) {
        let void: Vec<usize> = (0..findings.len()).filter(|position| findings[*position] != Finding::Solid).collect();
        return if void.is_empty() { Verdict::Leave } else { Verdict::Unlink(void) };
    }
    if owns && findings.contains(&Finding::Waiting) { Verdict::Foreground } else { Verdict::Delete }
}
