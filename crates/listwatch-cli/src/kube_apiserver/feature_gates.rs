//! [`FeatureGates`]: the values of `--feature-gates`, checked against the gates of kube-apiserver 1.36.
//!
//! Source: the table of feature gates of kubernetes/website, `component-base/featuregate/feature_gate.go`.

use super::command_line::parse_bool;

/// The gates by their default, sorted.
const GATES: [(bool, &str); 6] = [
    // Alpha.
    (
        false,
        "APIServingWithRoutine AllowUnsafeMalformedObjectDeletion CBORServingAndStorage \
         CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth ClientsAllowCBOR ClientsPreferCBOR \
         CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook ContainerStopSignals \
         ControllerManagerReleaseLeaderElectionLockOnExit CrossNamespaceVolumeDataSource CustomCPUCFSQuotaPeriod \
         DRAListTypeAttributes DRANodeAllocatableResources DRAResourcePoolStatus DRASchedulerFilterTimeout \
         DRAWorkloadResourceClaims EventedPLEG GenericWorkload HPAScaleToZero ImageVolumeWithDigest \
         InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory KubeletInUserNamespace \
         LoggingAlphaOptions ManifestBasedAdmissionControlConfig MemoryQoS MutablePVNodeAffinity NativeHistograms \
         PersistentVolumeClaimUnusedSinceTime PodAndContainerStatsFromCRI PodLevelResourceManagers \
         PodLogsQuerySplitStreams PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay RuntimeClassInImageCriApi \
         ShardedListAndWatch StorageCapacityScoring StorageVersionAPI TaintTolerationComparisonOperators \
         TopologyAwareWorkloadScheduling TopologyManagerPolicyAlphaOptions UserNamespacesHostNetworkSupport \
         VolumeLimitScaling WindowsCPUAndMemoryAffinity WorkloadWithJob",
    ),
    // Beta.
    (
        false,
        "CRDObservedGenerationTracking ClusterTrustBundle ClusterTrustBundleProjection ConcurrentWatchObjectDecode \
         CoordinatedLeaderElection DRADeviceTaintRules HPAConfigurableTolerance \
         LocalStorageCapacityIsolationFSQuotaMonitoring MaxUnavailableStatefulSet PodCertificateRequest \
         SELinuxMount StorageVersionMigrator",
    ),
    // Beta.
    (
        true,
        "APIResponseCompression APIServerIdentity AllowParsingUserUIDFromCertAuth AtomicFIFO \
         AuthorizePodWebsocketUpgradeCreatePermission CPUManagerPolicyBetaOptions \
         ClearingNominatedNodeNameAfterBinding ComponentFlagz ComponentStatusz ConstrainedImpersonation \
         ContainerCheckpoint ContainerRestartRules ContextualLogging DRAConsumableCapacity \
         DRADeviceBindingConditions DRADeviceTaints DRAExtendedResource DRAPartitionableDevices \
         DRAResourceClaimDeviceStatus DRAResourceClaimGranularStatusAuthorization DeclarativeValidationBeta \
         DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency DisableCPUQuotaWithExclusiveCPUs EnvFiles \
         ExtendWebSocketsToKubelet GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority HostnameOverride \
         InOrderInformers InPlacePodLevelResourcesVerticalScaling KubeletCrashLoopBackOffMax \
         KubeletEnsureSecretPulledImages KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders \
         ListFromCacheSnapshot LoggingBetaOptions MatchLabelKeysInPodTopologySpread \
         MatchLabelKeysInPodTopologySpreadSelectorMerge MutablePodResourcesForSuspendedJobs \
         MutableSchedulingDirectivesForSuspendedJobs NodeDeclaredFeatures NominatedNodeNameForExpectation \
         OpenAPIEnums OpportunisticBatching PodDeletionCost PodLevelResources PodReadyToStartContainersCondition \
         PodTopologyLabelsAdmission PortForwardWebsockets PreventStaticPodAPIReferences \
         RelaxedServiceNameValidation ReloadKubeletServerCertificateFile RemoteRequestHeaderUID \
         ResourceHealthStatus RestartAllContainersOnContainerExits RotateKubeletServerCertificate \
         SchedulerAsyncAPICalls SchedulerAsyncPreemption SchedulerPopFromBackoffQ \
         ServiceAccountNodeAudienceRestriction SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet \
         StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet \
         StorageVersionHash StrictIPCIDRValidation StructuredAuthenticationConfigurationEgressSelector \
         StructuredAuthenticationConfigurationJWKSMetrics SupplementalGroupsPolicy SystemdWatchdog \
         TokenRequestServiceAccountUIDValidation TopologyManagerPolicyBetaOptions \
         TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation \
         UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO WatchCacheInitializationPostStartHook \
         WatchList WatchListClient WindowsGracefulNodeShutdown",
    ),
    // Stable or deprecated.
    (
        true,
        "APIServerTracing AggregatedDiscoveryRemoveBetaType AnonymousAuthConfigurableEndpoints AnyVolumeDataSource \
         AuthorizeNodeWithSelectors AuthorizeWithSelectors BtreeWatchCache CPUManagerPolicyOptions \
         CRDValidationRatcheting CSIServiceAccountTokenSecrets ConsistentListFromCache CronJobsScheduledAnnotation \
         CustomResourceFieldSelectors DRAAdminAccess DRAPrioritizedList DeclarativeValidation \
         DisableAllocatorDualWrite DisableNodeKubeProxyVersion DynamicResourceAllocation ElasticIndexedJob \
         ExecProbeTimeout ExternalServiceAccountTokenSigner ImageMaximumGCAge ImageVolume InPlacePodVerticalScaling \
         InformerResourceVersion JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy JobSuccessPolicy \
         KubeletCgroupDriverFromCRI KubeletFineGrainedAuthz KubeletPSI KubeletPodResourcesDynamicResources \
         KubeletPodResourcesGet KubeletTracing LogarithmicScaleDown MatchLabelKeysInPodAffinity MemoryManager \
         MultiCIDRServiceAllocator MutableCSINodeAllocatableCount MutatingAdmissionPolicy NFTablesProxyMode \
         NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap OrderedNamespaceDeletion PodIndexLabel \
         PodLifecycleSleepAction PodLifecycleSleepActionAllowZero PodObservedGenerationTracking \
         PodSchedulingReadiness PreferSameTrafficDistribution ProcMountType RecoverVolumeExpansionFailure \
         RecursiveReadOnlyMounts RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation \
         ResilientWatchCacheInitialization RetryGenerateName SELinuxChangePolicy SELinuxMountReadWriteOncePod \
         SchedulerQueueingHints SeparateTaintEvictionController ServiceAccountTokenJTI \
         ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo \
         ServiceTrafficDistribution SidecarContainers StatefulSetAutoDeletePVC StatefulSetStartOrdinal \
         StorageNamespaceIndex StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf \
         StrictCostEnforcementForVAP StrictCostEnforcementForWebhooks StructuredAuthenticationConfiguration \
         TopologyAwareHints TopologyManagerPolicyOptions UserNamespacesSupport VolumeAttributesClass WinDSR \
         WinOverlay",
    ),
    // Stable or deprecated.
    (
        false,
        "AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests \
         AllowOverwriteTerminationGracePeriodSeconds ChangeContainerStatusOnKubeletRestart \
         DeclarativeValidationTakeover GitRepoVolumeDriver InPlacePodVerticalScalingAllocatedStatus KMSv1 \
         SeparateCacheWatchRPC WatchFromStorageWithoutResourceVersion WindowsHostNetwork",
    ),
    // Groups of gates: `GROUPS`.
    (false, "AllAlpha AllBeta"),
];

/// The names of groups of gates.
const GROUPS: [&str; 2] = ["AllAlpha", "AllBeta"];
/// The gates with an effect in this server.
const CBOR: &str = "CBORServingAndStorage";
const IDENTITY: &str = "APIServerIdentity";
const CONSTRAINED_IMPERSONATION: &str = "ConstrainedImpersonation";
const FLAGZ: &str = "ComponentFlagz";
const STATUSZ: &str = "ComponentStatusz";
/// The gate of `shardSelector`, which this server always has.
const SHARDS: &str = "ShardedListAndWatch";

/// The settings that follow from the gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FeatureGates {
    /// Whether the server supports CBOR.
    pub(super) cbor: bool,
    /// Whether the server renews an identity Lease.
    pub(super) identity: bool,
    /// Whether impersonation has modes with permissions of their own.
    pub(super) constrained_impersonation: bool,
    /// Whether the server serves `/flagz`.
    pub(super) flagz: bool,
    /// Whether the server serves `/statusz`.
    pub(super) statusz: bool,
    /// The texts about gates that have no effect.
    pub(super) warnings: Vec<String>,
}

impl Default for FeatureGates {
    fn default() -> Self {
        FeatureGates {
            cbor: false,
            identity: true,
            constrained_impersonation: true,
            flagz: true,
            statusz: true,
            warnings: Vec::new(),
        }
    }
}

impl FeatureGates {
    /// Parses the items of the flag: `Name=true`, or with the component `kube:Name=true`. If a gate is repeated, the
    /// last item applies.
    ///
    /// # Errors
    /// An unknown gate, a missing value, or a value that is not a boolean, with kube-apiserver's text.
    pub(super) fn parse(items: &[&str]) -> Result<Self, String> {
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            let (name, value) = item.split_once('=').ok_or_else(|| format!("missing bool value for {item}"))?;
            let name = name.trim().strip_prefix("kube:").unwrap_or(name.trim());
            let value = value.trim();
            let on = parse_bool(value).ok_or_else(|| {
                format!("invalid value of {name}={value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax")
            })?;
            let default = default_of(name).ok_or_else(|| format!("unrecognized feature gate: {name}"))?;
            values.push((name, on, default));
        }
        let mut gates = FeatureGates::default();
        // The value of a single gate wins over that of its group.
        let (groups, single): (Vec<_>, Vec<_>) = values.into_iter().partition(|(name, _, _)| GROUPS.contains(name));
        for (name, on, default) in groups.into_iter().chain(single) {
            match name {
                CBOR => gates.cbor = on,
                IDENTITY => gates.identity = on,
                "AllAlpha" => gates.cbor = on,
                CONSTRAINED_IMPERSONATION => gates.constrained_impersonation = on,
                FLAGZ => gates.flagz = on,
                STATUSZ => gates.statusz = on,
                "AllBeta" => {
                    gates =
                        FeatureGates { identity: on, constrained_impersonation: on, flagz: on, statusz: on, ..gates };
                }
                SHARDS if on => {}
                SHARDS => gates.warnings.push(format!("{name}={on} has no effect: the server behaves as with true")),
                _ if on != default => {
                    gates.warnings.push(format!("{name}={on} has no effect: the server behaves as with {default}"));
                }
                _ => {}
            }
        }
        Ok(gates)
    }
}

/// The default of a gate; `None` if there is no such gate.
fn default_of(name: &str) -> Option<bool> {
    let has = |names: &str| names.split_whitespace().any(|known| known == name);
    GATES.iter().find(|(_, names)| has(names)).map(|(default, _)| *default)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_gate_is_in_the_table_once() {
        let mut names = HashSet::new();
        for (_, gates) in GATES {
            let gates: Vec<&str> = gates.split_whitespace().collect();
            assert!(gates.is_sorted(), "{gates:?}");
            for name in gates {
                assert!(names.insert(name), "{name}");
            }
        }
        assert!(names.len() > 200, "{}", names.len());
    }

    #[test]
    fn feature_gate_with_a_non_default_value_causes_a_warning() {
        for (items, expected) in [
            (&["WatchList=true", "KMSv1=false", "kube:ClusterTrustBundle=0"][..], &[][..]),
            (&["WatchList=false"], &["WatchList=false has no effect: the server behaves as with true"]),
            (
                &["CBORServingAndStorage=true", "PodsAPI=T"],
                &["PodsAPI=true has no effect: the server behaves as with false"],
            ),
            (&["AllAlpha=false", "ShardedListAndWatch=true"], &[]),
            (
                &["ShardedListAndWatch=false"],
                &["ShardedListAndWatch=false has no effect: the server behaves as with true"],
            ),
        ] {
            assert_eq!(FeatureGates::parse(items).unwrap().warnings, expected, "{items:?}");
        }
    }

    #[test]
    fn unknown_gates_and_values_are_rejected_with_the_text_of_kube_apiserver() {
        for (item, expected) in [
            ("NoSuchGate=true", "unrecognized feature gate: NoSuchGate"),
            ("WatchList", "missing bool value for WatchList"),
            (
                "WatchList=maybe",
                "invalid value of WatchList=maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
        ] {
            assert_eq!(FeatureGates::parse(&[item]), Err(expected.to_owned()));
        }
    }

    #[test]
    fn gates_of_this_server_switch_their_features() {
        let settings = |items: &[&str]| {
            let gates = FeatureGates::parse(items).unwrap();
            assert_eq!(gates.warnings, Vec::<String>::new(), "{items:?}");
            let on = [
                ("cbor", gates.cbor),
                ("identity", gates.identity),
                ("impersonation", gates.constrained_impersonation),
                ("flagz", gates.flagz),
                ("statusz", gates.statusz),
            ];
            let on: Vec<&str> = on.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect();
            on.join(" ")
        };
        for (items, expected) in [
            (&[][..], "identity impersonation flagz statusz"),
            (&["CBORServingAndStorage=true", "APIServerIdentity=false"], "cbor impersonation flagz statusz"),
            (&["ConstrainedImpersonation=false"], "identity flagz statusz"),
            (&["ComponentFlagz=false"], "identity impersonation statusz"),
            (&["ComponentStatusz=false"], "identity impersonation flagz"),
            (&["CBORServingAndStorage=false", "AllAlpha=true", "AllBeta=false"], ""),
            (&["ConstrainedImpersonation=true", "AllBeta=false"], "impersonation"),
            (&["ComponentFlagz=true", "ComponentStatusz=true", "AllBeta=false"], "flagz statusz"),
        ] {
            assert_eq!(settings(items), expected, "{items:?}");
        }
    }
}
