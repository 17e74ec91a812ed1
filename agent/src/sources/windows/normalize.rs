//! Turns decoded ETW events into the events of the model.
//!
//! Used by the live source and by the replay of an `.etl` file, so that tests on files hold for nodes too. Dispatches by
//! provider to one module per family. An unknown event yields nothing; an activity with an unknown name is still an activity.
//! Does not: attribute events to sandboxes, or open sessions and files.

mod activities;
mod compute;
mod dns;
mod network;
mod processes;
mod runtime;
mod text;
mod vfp;

use std::collections::BTreeMap;

use sandglass_etw::{EtwEvent, Guid};
use sandglass_model::windows::Service;
use sandglass_model::{Event, Timestamp};

pub use self::activities::{ActivityNames, NamesError, NamesFileError};
use self::compute::ComputeSystems;
use self::processes::ProcessTable;

/// Turns ETW events into model events. Its state: running processes by id, and begun operations on compute systems.
#[derive(Debug)]
pub struct Normalizer {
    /// Which activities are ignored.
    names: ActivityNames,
    /// For parents, and for the ends of processes.
    processes: ProcessTable,
    /// For operations that two events make.
    systems: ComputeSystems,
    /// Events of providers that a file contains and no session of ours enables, by provider; at most [`MAX_UNKNOWN`] of them.
    unknown: BTreeMap<Guid, u64>,
}

impl Normalizer {
    /// A normalizer without state, with a table of activity names.
    #[must_use]
    pub fn new(names: ActivityNames) -> Normalizer {
        Normalizer {
            names,
            processes: ProcessTable::default(),
            systems: ComputeSystems::default(),
            unknown: BTreeMap::new(),
        }
    }

    /// Appends the model events of an ETW event: none or one, for Microsoft-Windows-Hyper-V-Compute up to three. Events are
    /// to come in the order of their time: a process is known to its children from its start to its end.
    pub fn facts(&mut self, event: &EtwEvent, facts: &mut Vec<Event>) {
        let at = Timestamp(event.at_ns);
        // The one provider of which one event may be two steps.
        if event.provider == HYPER_V_COMPUTE {
            let steps = self.systems.steps(event, &self.names).into_iter();
            return facts.extend(steps.map(|body| Event { at, body }));
        }
        let body = match event.provider {
            KERNEL_LOGGER_PROCESS => self.processes.logged(event),
            KERNEL_PROCESS => processes::silo(event),
            HNS => activities::activity(Service::Hns, event, &self.names),
            HCS => activities::activity(Service::Hcs, event, &self.names),
            CONTAINERS_LIBRARY => activities::activity(Service::Silo, event, &self.names),
            CONTAINERD => runtime::containerd(event),
            RUN_HCS => runtime::run_hcs(event),
            DNS_CLIENT => dns::lookup(event),
            WINSOCK => dns::call(event),
            TCPIP => network::tcpip(event),
            WIN_NAT => network::nat(event),
            VFP => vfp::flow(event),
            other => {
                if self.unknown.len() < MAX_UNKNOWN || self.unknown.contains_key(&other) {
                    *self.unknown.entry(other).or_default() += 1;
                }
                None
            }
        };
        facts.extend(body.map(|body| Event { at, body }));
    }

    /// Numbers of events from other providers.
    #[must_use]
    pub fn unknown_providers(&self) -> &BTreeMap<Guid, u64> {
        &self.unknown
    }
}

/// Bound on counted other providers.
const MAX_UNKNOWN: usize = 256;

// GUIDs of providers: microsoft/hcsshim internal/vm/vmutils/etw/etw_map.go, microsoft/SDN starthnstrace.ps1 and
// jdu2600/Windows10EtwEvents. Those of ContainerD and RunHCS are hashes of their names (microsoft/go-winio
// pkg/etw/provider.go, `providerIDFromName`).
/// Kernel logger, MOF class `Process`: starts and ends with command lines
/// (<https://learn.microsoft.com/windows/win32/etw/process>).
pub const KERNEL_LOGGER_PROCESS: Guid = Guid::literal("3d6fa8d0-fe05-11d0-9dda-00c04fd7ba7c");
/// Microsoft-Windows-Kernel-Process: silos and jobs.
pub const KERNEL_PROCESS: Guid = Guid::literal("22fb2cd6-0e7b-422b-a0c7-2fad1fd0e716");
/// Microsoft-Windows-Host-Network-Service.
pub const HNS: Guid = Guid::literal("0c885e0d-6eb6-476c-a048-2457eed3a5c1");
/// Microsoft.Windows.HyperV.Compute.
pub const HCS: Guid = Guid::literal("80ce50de-d264-4581-950d-abadeee0d340");
/// Microsoft-Windows-Hyper-V-Compute: the event log of HCS.
pub const HYPER_V_COMPUTE: Guid = Guid::literal("17103e3f-3c6e-4677-bb17-3b267eb5be57");
/// Microsoft.Windows.Containers.Library.
pub const CONTAINERS_LIBRARY: Guid = Guid::literal("67eb0417-9297-42ae-a1d9-98bfeb359059");
/// ContainerD.
pub const CONTAINERD: Guid = Guid::literal("2acb92c0-eb9b-571a-69cf-8f3410f383ad");
/// Microsoft.Virtualization.RunHCS, the shim.
pub const RUN_HCS: Guid = Guid::literal("0b52781f-b24d-5685-ddf6-69830ed40ec3");
/// Microsoft-Windows-DNS-Client.
pub const DNS_CLIENT: Guid = Guid::literal("1c95126e-7eea-49a9-a3fe-a378b03ddb4d");
/// Microsoft-Windows-Winsock-NameResolution.
pub const WINSOCK: Guid = Guid::literal("55404e71-4db9-4deb-a5f5-8f86e46dde56");
/// Microsoft-Windows-TCPIP.
pub const TCPIP: Guid = Guid::literal("2f07e2ee-15db-40f1-90ef-9d7ba282188a");
/// Microsoft-Windows-WinNat.
pub const WIN_NAT: Guid = Guid::literal("66c07ecd-6667-43fc-93f8-05cf07f446ec");
/// Microsoft-Windows-Hyper-V-VfpExt: the filtering platform of the virtual switch.
pub const VFP: Guid = Guid::literal("9f2660ea-cfe7-428f-9850-aeca612619b0");

#[cfg(test)]
mod tests;
