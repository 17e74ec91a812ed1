//! Which of the ETW providers that traces are made of this Windows has: what it means when one is missing, and how to get it.
//!
//! Judges two lists that `windows.rs` requests: providers with a manifest, and those that some process has registered now.
//! Providers that describe themselves (TraceLogging) stand in the second only, and only while their program runs. So their absence
//! means less than that of a provider with a manifest, which Windows installs with the feature it belongs to (the WINEVT section
//! of the registry, `wevtutil im`).
//! Does not: call Windows; so it is tested everywhere.

use sandglass_etw::Guid;

use super::{Finding, Level};
use crate::sources::windows::normalize as of;

/// What Windows reported. The second list is needed because a provider that describes itself has no manifest to be listed by
/// (TraceLogging, learn.microsoft.com/windows/win32/tracelogging). `None` where a request failed.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Providers with a manifest.
    pub(super) manifests: Option<Vec<Guid>>,
    /// Providers that are registered by a process or driver.
    pub(super) running: Option<Vec<Guid>>,
}

/// A provider that the agent enables.
pub(crate) struct Provider {
    /// Stable name of the check, which scripts and runbooks search for.
    check: &'static str,
    /// Its own name. `logman query providers` lists those with a manifest, with `-pid` those of a running process.
    name: &'static str,
    /// What a session enables it by. The constants and their sources are in `sources/windows/normalize.rs`.
    pub(crate) guid: Guid,
    /// There is a manifest of it, which is installed with Windows or a feature; otherwise it is known only while its program
    /// runs.
    manifest: bool,
    /// How bad it is when it is missing; `Note` for what comes with the first container.
    level: Level,
    /// What traces and metrics lack without it, in the words of the user.
    without: &'static str,
    /// How it comes to be registered.
    hint: &'static str,
}

/// One finding when all are there, else one more for each that is not. What is in neither list is missing only where the list that
/// would contain it could be read: a failed request is no evidence.
pub(super) fn judge(known: &Known) -> Vec<Finding> {
    let is_there = |provider: &Provider| {
        let listed = |list: &Option<Vec<Guid>>| list.as_ref().map(|list| list.contains(&provider.guid));
        // A provider without a manifest is in the second list alone, so that the first says nothing of it.
        // One list that contains it is enough; absence needs a list that was read and that would contain it.
        match (listed(&known.manifests), listed(&known.running)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), None) if provider.manifest => Some(false),
            (_, Some(false)) => Some(false),
            (_, None) => None,
        }
    };
    // Each is judged once; the three counts must add up.
    let answers: Vec<(&Provider, Option<bool>)> = PROVIDERS.iter().map(|one| (one, is_there(one))).collect();
    // Three answers: there, missing, and not known because a request failed.
    let count = |wanted| answers.iter().filter(|(_, answer)| *answer == wanted).count();
    let (there, unknown) = (count(Some(true)), count(None));
    let mut findings = Vec::new();
    // Those that are there share a line: twelve lines that are well hide one that is not.
    if there > 0 {
        let what = format!("{there} of {} ETW providers are registered", PROVIDERS.len());
        findings.push(Finding::ok("windows.providers", what));
    }
    if unknown > 0 {
        let what = format!("{unknown} of {} ETW providers could not be queried", PROVIDERS.len());
        // A failed request is reported as such: neither the list nor its absence says anything of a provider.
        findings.push(Finding::new(Level::Note, "windows.providers", what));
    }
    // In the order of the table, which is that of importance.
    let missing = answers.iter().filter(|(_, answer)| *answer == Some(false));
    findings.extend(missing.map(|(provider, _)| {
        let what = format!("the ETW provider {} is not registered", provider.name);
        Finding::new(provider.level, provider.check, what)
            .why(provider.without)
            .hint(provider.hint)
    }));
    findings
}

/// Every provider that the sessions enable (`providers.rs` of the live source; a test there compares the two), and VFP's, which
/// is enabled on demand. A note where the provider comes with the first container: on an idle node its absence is usual.
pub(crate) const PROVIDERS: [Provider; 12] = [
    // Calls of the HNS service, as start and stop activities: endpoints, policies, namespaces. TraceLogging (hostnetsvc.dll):
    // every event has the id 0 and carries its own name and schema.
    Provider {
        check: "windows.provider.hns",
        name: "Microsoft-Windows-Host-Network-Service",
        guid: of::HNS,
        manifest: false,
        level: Level::Warn,
        without: "no spans of HNS: what a plugin waits for there is not visible",
        hint: "it comes with the service hns of the Containers feature: `Install-WindowsFeature Containers`, then `Start-Service hns`",
    },
    // Calls into HCS, as their caller makes them (vmcompute.dll); activities too. TraceLogging, by any process that makes a
    // call.
    Provider {
        check: "windows.provider.hcs",
        name: "Microsoft.Windows.HyperV.Compute",
        guid: of::HCS,
        manifest: false,
        level: Level::Note,
        without: "no spans of calls into HCS, until a program makes one",
        hint: "it comes with the first container; look again while one is started",
    },
    // Numbered events of the service itself, such as 2022: a container was started. The event log Microsoft-Windows-Hyper-V-Compute
    // shows the same ones.
    Provider {
        check: "windows.provider.hcs-log",
        name: "Microsoft-Windows-Hyper-V-Compute",
        guid: of::HYPER_V_COMPUTE,
        manifest: true,
        level: Level::Warn,
        without: "no spans of what HCS does with containers",
        hint: "it comes with the Containers feature: `Install-WindowsFeature Containers`",
    },
    // What container.dll does within HCS: making a silo, booting it, cleaning up. TraceLogging.
    Provider {
        check: "windows.provider.silo",
        name: "Microsoft.Windows.Containers.Library",
        guid: of::CONTAINERS_LIBRARY,
        manifest: false,
        level: Level::Note,
        without: "no spans of silos being made, until HCS makes one",
        hint: "it comes with the first container; look again while one is started",
    },
    // Log lines of the CRI plugin, through microsoft/go-winio pkg/etwlogrus: pod, sandbox id, namespace.
    Provider {
        check: "windows.provider.containerd",
        name: "ContainerD",
        guid: of::CONTAINERD,
        manifest: false,
        level: Level::Warn,
        without: "sandboxes have no pods, and their begin and end are not known",
        hint: "start containerd: it registers the provider itself (`Start-Service containerd`)",
    },
    // Spans of the shim (microsoft/hcsshim, cmd/containerd-shim-runhcs-v1), which carry the container id. Its GUID is a hash of
    // its name, as that of ContainerD (microsoft/go-winio, pkg/etw/provider.go).
    Provider {
        check: "windows.provider.shim",
        name: "Microsoft.Virtualization.RunHCS",
        guid: of::RUN_HCS,
        manifest: false,
        level: Level::Note,
        without: "no spans of the shim, until one runs",
        hint: "every pod has a shim that registers it; look again while a pod runs",
    },
    // Job and silo events, keywords 0x400 and 0x4000 of the manifest: which silo is which container. Starts of processes come
    // from the kernel logger, which needs no provider.
    Provider {
        check: "windows.provider.process",
        name: "Microsoft-Windows-Kernel-Process",
        guid: of::KERNEL_PROCESS,
        manifest: true,
        level: Level::Warn,
        without: "silos are not matched with their containers: lookups of pods have no owner",
        hint: "it is a part of Windows: `wevtutil gp Microsoft-Windows-Kernel-Process` says what is wrong with it",
    },
    // Whole lookups of the DNS client service; event ids in `windows/service_lookup.rs` of the correlator.
    Provider {
        check: "windows.provider.dns",
        name: "Microsoft-Windows-DNS-Client",
        guid: of::DNS_CLIENT,
        manifest: true,
        level: Level::Warn,
        without: "no lookups, and readiness of networks is not known",
        hint: "it is a part of Windows: `wevtutil gp Microsoft-Windows-DNS-Client` says what is wrong with it",
    },
    // getaddrinfo as a program calls it, before the service gets the request. What the hosts file answers is seen here only.
    Provider {
        check: "windows.provider.winsock",
        name: "Microsoft-Windows-Winsock-NameResolution",
        guid: of::WINSOCK,
        manifest: true,
        level: Level::Note,
        without: "lookups begin with the request to the DNS client, not with the program's call of its socket library",
        hint: "it is a part of Windows: `wevtutil gp Microsoft-Windows-Winsock-NameResolution` says what is wrong with it",
    },
    // Steps of connections, and interfaces as they come into a compartment (event 1061). Its events name the compartment and not
    // the container.
    Provider {
        check: "windows.provider.tcpip",
        name: "Microsoft-Windows-TCPIP",
        guid: of::TCPIP,
        manifest: true,
        level: Level::Warn,
        without: "no connections and no interfaces: waits for a vNIC are not seen",
        hint: "it is a part of Windows: `wevtutil gp Microsoft-Windows-TCPIP` says what is wrong with it",
    },
    // Sessions of HNS networks of type nat.
    Provider {
        check: "windows.provider.nat",
        name: "Microsoft-Windows-WinNat",
        guid: of::WIN_NAT,
        manifest: true,
        level: Level::Note,
        without: "no translations of NAT networks; l2bridge and overlay networks have none there anyway",
        hint: "it comes with the Containers feature: `Install-WindowsFeature Containers`",
    },
    // Flows of the virtual switch, on demand (`windows.vfp`).
    Provider {
        check: "windows.provider.vfp",
        name: "Microsoft-Windows-Hyper-V-VfpExt",
        guid: of::VFP,
        manifest: true,
        level: Level::Note,
        without: "windows.vfp has no effect: no flows of l2bridge and overlay networks",
        hint: "it is a part of Windows Server's network virtualization: `Install-WindowsFeature NetworkVirtualization`",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// What a node would list: all providers of the kind but some, and one that the agent does not know.
    fn guids(but: &[Guid], manifest: bool) -> Vec<Guid> {
        let wanted = PROVIDERS.iter().filter(|provider| provider.manifest == manifest);
        let guids = wanted.map(|provider| provider.guid);
        guids.chain([Guid(5)]).filter(|guid| !but.contains(guid)).collect()
    }

    #[test]
    fn a_node_that_has_all_of_them() {
        let known = Known {
            manifests: Some(guids(&[], true)),
            running: Some(guids(&[], false)),
        };
        let [all] = &judge(&known)[..] else {
            panic!("{:?}", judge(&known))
        };
        assert_eq!(
            (all.level, all.what.as_str()),
            (Level::Ok, "12 of 12 ETW providers are registered")
        );
    }

    #[test]
    fn each_that_is_missing_has_a_consequence_and_a_hint() {
        let missing = [of::HNS, of::RUN_HCS, of::VFP, of::DNS_CLIENT];
        let known = Known {
            manifests: Some(guids(&missing, true)),
            running: Some(guids(&missing, false)),
        };
        let findings = judge(&known);
        assert_eq!(findings[0].what, "8 of 12 ETW providers are registered");
        let found: Vec<_> = findings[1..].iter().map(|one| (one.check, one.level)).collect();
        assert_eq!(
            found,
            [
                ("windows.provider.hns", Level::Warn),
                ("windows.provider.shim", Level::Note),
                ("windows.provider.dns", Level::Warn),
                ("windows.provider.vfp", Level::Note),
            ]
        );
        assert!(
            findings[1..]
                .iter()
                .all(|one| !one.why.is_empty() && !one.hint.is_empty())
        );
    }

    #[test]
    fn what_cannot_be_asked_is_said_and_not_guessed() {
        let [unknown] = &judge(&Known::default())[..] else {
            panic!()
        };
        assert_eq!(
            (unknown.level, unknown.what.as_str()),
            (Level::Note, "12 of 12 ETW providers could not be queried")
        );
        // Manifests alone tell nothing of those that have none.
        let manifests = Some(guids(&[of::TCPIP], true));
        let known = Known {
            manifests,
            running: None,
        };
        let levels: Vec<_> = judge(&known).iter().map(|one| (one.check, one.level)).collect();
        assert_eq!(
            levels,
            [
                ("windows.providers", Level::Ok),
                ("windows.providers", Level::Note),
                ("windows.provider.tcpip", Level::Warn),
            ]
        );
        // A provider that runs is there, with a manifest or without.
        let known = Known {
            manifests: None,
            running: Some(PROVIDERS.iter().map(|provider| provider.guid).collect()),
        };
        assert_eq!(judge(&known).len(), 1);
    }
}
