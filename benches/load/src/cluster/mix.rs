//! The types of requests, and how many of each a number of pods causes ([`MIX`]).

use std::ops::Range;

/// The type of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestType {
    GetPod,
    PatchPodStatus,
    DeletePod,
    CreatePod,
    BindPod,
    CreateEvent,
    UpdateEndpointSlice,
    UpdateReplicaSetStatus,
    UpdateDeploymentStatus,
    RenewNodeLease,
    PatchNodeStatus,
    RenewLeaderLease,
    GetLeaderLease,
}

use RequestType::{
    BindPod, CreateEvent, CreatePod, DeletePod, GetLeaderLease, GetPod, PatchNodeStatus, PatchPodStatus,
    RenewLeaderLease, RenewNodeLease, UpdateDeploymentStatus, UpdateEndpointSlice, UpdateReplicaSetStatus,
};

/// The types in the order of [`RequestType`], their names in the table, and their number for each 100 pods.
///
/// Recorded from unmodified kube-controller-manager, kube-scheduler and 10 hollow kubelets v1.36 in the life of 300
/// pods (`cargo xtask e2e --cluster --cycle 300`): 4,963 requests, of which 35 % were reads of a pod, 29 % patches of a
/// pod's status, 12 % deletions, and 6 % each creates of pods, bindings and events. For the other types only the sum is
/// recorded. Their numbers are estimates: a lease renewal and a heartbeat of each node every 10 s, and one update of an
/// EndpointSlice for each three pods.
pub(super) const MIX: [(RequestType, &str, usize); 13] = [
    (GetPod, "GET pods", 579),
    (PatchPodStatus, "PATCH pods/status", 480),
    (DeletePod, "DELETE pods", 200),
    (CreatePod, "POST pods", 100),
    (BindPod, "POST pods/binding", 100),
    (CreateEvent, "POST events", 100),
    (UpdateEndpointSlice, "PUT endpointslices", 33),
    (UpdateReplicaSetStatus, "PUT replicasets/status", 16),
    (UpdateDeploymentStatus, "PUT deployments/status", 16),
    (RenewNodeLease, "PUT leases, nodes", 10),
    (PatchNodeStatus, "PATCH nodes/status", 10),
    (RenewLeaderLease, "PUT leases, leader election", 7),
    (GetLeaderLease, "GET leases, leader election", 3),
];

impl RequestType {
    /// The numbers of the requests of this type that belong to a pod. Pods are numbered from 0, and so are the requests
    /// of a type.
    pub(super) fn numbers(self, pod: usize) -> Range<usize> {
        let (_, _, per_100_pods) = MIX[self as usize];
        pod * per_100_pods / 100..(pod + 1) * per_100_pods / 100
    }

    /// The number of requests of this type that belong to a pod.
    pub(super) fn count(self, pod: usize) -> usize {
        self.numbers(pod).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_of_300_pods_has_the_recorded_shares() {
        let counts = MIX.map(|(kind, ..)| (0..300).map(|pod| kind.count(pod)).sum::<usize>());
        let sum: usize = counts.iter().sum();
        assert!((4_940..5_000).contains(&sum), "{sum} requests");
        let percent = |count: usize| (count as f64 * 100.0 / sum as f64).round();
        assert_eq!(
            counts[..6].iter().map(|count| percent(*count)).collect::<Vec<_>>(),
            [35.0, 29.0, 12.0, 6.0, 6.0, 6.0]
        );
        assert_eq!(percent(counts[6..].iter().sum()), 6.0);
    }

    #[test]
    fn mix_lists_request_types_in_enum_order() {
        for (index, (kind, ..)) in MIX.iter().enumerate() {
            assert_eq!(*kind as usize, index);
        }
    }

    #[test]
    fn every_pod_is_created_once_and_read_before_each_patch() {
        for pod in 0..1_000 {
            for kind in [CreatePod, BindPod, CreateEvent] {
                assert_eq!(kind.count(pod), 1, "{kind:?} of pod {pod}");
            }
            assert_eq!(DeletePod.count(pod), 2, "pod {pod}");
            assert!((4..=5).contains(&PatchPodStatus.count(pod)), "pod {pod}");
            assert!(GetPod.count(pod) >= PatchPodStatus.count(pod), "pod {pod}");
        }
    }
}
