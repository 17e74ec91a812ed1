//! Replaces names and addresses in a recording, so that it can be shown to others and replays to the same tree.
//!
//! Used by `record --anonymize` and `replay --record --anonymize`. Replaced: pods, namespaces (not those that Kubernetes
//! itself makes), labels, the node, ids of sandboxes and objects, UUIDs, trace contexts, IP addresses, DNS names, home
//! directories. The same text has the same substitute in all of one recording, and numbers are counted from 1, so a
//! substitute says nothing about its original.
//! Does not: replace names of plugins, commands, networks and interfaces, arguments that are no name, times, pids, or names
//! that a plugin's message mentions and nothing else does.

mod ids;
mod names;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use self::ids::Ids;
use self::names::Names;
use crate::cni::PodIdentity;
use crate::event::{Body, Event, Exec, Netns, SandboxDescription};
use crate::id::SandboxId;
use crate::network::{Answer, DnsMessage};
use crate::recording::{Header, Holds};
use crate::text_list::{TextPairs, split, split_once};
use crate::windows::{ActivityChange, ActivityStep, LookupChange, LookupStep, ObjectKey, RuntimeReport};

/// The substitutes of one recording.
#[derive(Debug, Default)]
pub struct Anonymizer {
    names: Names,
    ids: Ids,
    addresses: Addresses,
}

impl Anonymizer {
    /// The header of the anonymized recording. Call it first: it makes the node's name known.
    pub fn header(&mut self, header: &Header) -> Header {
        if header.node.len() > 1 {
            self.names.insert(&header.node, "node");
        }
        Header {
            node: self.names.of(&header.node, "node"),
            boot_id: self.ids.in_text(&header.boot_id),
            holds: Some(Holds {
                anonymized: true,
                ..header.holds.unwrap_or_default()
            }),
            ..header.clone()
        }
    }

    /// Replaces names and addresses in an event.
    pub fn event(&mut self, event: &mut Event) {
        match &mut event.body {
            Body::ProcessExecuted(exec) => self.exec(exec),
            Body::PluginIoRead(io) => {
                if let Some(error) = &mut io.error {
                    error.msg = self.text(&error.msg);
                    error.details = self.text(&error.details);
                }
                for address in &mut io.addresses {
                    *address = self.addresses.in_text(address);
                }
            }
            Body::SandboxDescribed(description) => self.description(description),
            Body::NetnsObserved(netns) => self.netns(netns),
            Body::NetnsNamed { name, .. } => *name = self.text(name),
            Body::CniConfigJudged { problems } => {
                for problem in problems {
                    problem.text = self.text(&problem.text);
                }
            }
            Body::DnsSeen(message) => self.dns(message),
            Body::DnsUnreported(unreported) => self.ends([&mut unreported.client, &mut unreported.server]),
            Body::ConnectSeen(step) => self.ends([&mut step.local, &mut step.remote]),
            Body::FlowSeen(flow) => {
                self.ends([&mut flow.source, &mut flow.destination]);
                self.ends([&mut flow.reply_source, &mut flow.reply_destination]);
            }
            Body::PacketDropped(drop) => self.ends([&mut drop.source, &mut drop.destination]),
            Body::RequestSeen(step) => {
                if let Some(daemon) = &mut step.daemon {
                    daemon.cgroup = self.text(&daemon.cgroup);
                }
            }
            Body::SandboxRequested(request) => self.identity(&mut request.pod),
            Body::SandboxResponded(response) => {
                if let Some(sandbox) = &mut response.sandbox {
                    self.sandbox(sandbox);
                }
            }
            Body::ThreadWoken(wake) => wake.waker.cgroup = self.text(&wake.waker.cgroup),
            Body::LockBlocked(blocked) => blocked.path = self.text(&blocked.path),
            Body::ThreadsSeen(seen) => {
                for socket in &mut seen.sockets {
                    if let Some(remote) = &mut socket.remote {
                        remote.set_ip(self.addresses.of(remote.ip()));
                    }
                    socket.path = self.text(&socket.path);
                }
            }
            Body::TentativeSeen(seen) => {
                for tentative in &mut seen.addresses {
                    tentative.address = self.addresses.of_interface(tentative.address);
                    tentative.interface = self.text(&tentative.interface).into();
                }
            }
            Body::ApiServerKnown { address } => address.set_ip(self.addresses.of(address.ip())),
            Body::FileLockTried(file) => file.path = self.text(&file.path),
            Body::NetlinkRemarked(remark) => remark.message = self.text(&remark.message).into(),
            Body::Limited { source, .. } => *source = source.map(|address| self.addresses.of(address)),
            Body::ActivitySeen(step) => self.activity(step),
            Body::RuntimeReported(line) => self.runtime_line(line),
            Body::SiloSeen(step) => step.silo = self.id(&step.silo),
            Body::LookupSeen(step) => self.lookup(step),
            Body::ProcessForked(_)
            | Body::ProcessExited(_)
            | Body::NetworksConfigured { .. }
            | Body::TrafficWatched { .. }
            | Body::ConntrackCounted(_)
            | Body::InterfaceSeen(_)
            | Body::ThreadRan(_)
            | Body::ThreadEnded(_)
            | Body::KernelLockWaited(_)
            | Body::RuntimeMeasured(_)
            | Body::WaitsRecorded { .. }
            | Body::RequestsFollowed { .. }
            | Body::ClockAnchored { .. }
            | Body::Lost { .. }
            | Body::Tick => {}
        }
    }

    /// Paths, arguments, environment and cgroup of a process. `TRACESTATE` is left out: its form is each vendor's own.
    fn exec(&mut self, exec: &mut Exec) {
        // The environment first: it makes the names known that arguments repeat.
        let environment: TextPairs = exec
            .env
            .iter()
            .filter(|(name, _)| *name != "TRACESTATE")
            .map(|(name, value)| {
                let value = match name {
                    "CNI_CONTAINERID" => self.id(value),
                    "CNI_ARGS" => self.cni_args(value),
                    "CNI_COMMAND" | "CNI_IFNAME" => value.to_owned(),
                    _ => self.text(value),
                };
                (name.to_owned(), value)
            })
            .collect();
        exec.env = environment;
        exec.args = exec.args.iter().map(|argument| self.text(argument)).collect();
        exec.path = self.text(&exec.path).into();
        exec.cgroup = self.text(&exec.cgroup);
    }

    /// `K=V;K=V` (CNI conventions, `CNI_ARGS`), with substitutes for the pod's identity.
    fn cni_args(&mut self, args: &str) -> String {
        let pairs: Vec<String> = split(args, b';')
            .map(|pair| {
                let (name, value) = split_once(pair, b'=').unwrap_or((pair, ""));
                match name {
                    "K8S_POD_NAMESPACE" => format!("{name}={}", self.namespace(value)),
                    "K8S_POD_NAME" => format!("{name}={}", self.names.of(value, "pod")),
                    "K8S_POD_UID" | "K8S_POD_INFRA_CONTAINER_ID" => format!("{name}={}", self.id(value)),
                    _ => self.text(pair),
                }
            })
            .collect();
        pairs.join(";")
    }

    fn description(&mut self, description: &mut SandboxDescription) {
        self.sandbox(&mut description.sandbox);
        self.identity(&mut description.identity);
    }

    /// Names, uid and labels of a pod. The order of labels must not give away their names' order.
    fn identity(&mut self, identity: &mut PodIdentity) {
        identity.namespace = self.namespace(&identity.namespace);
        identity.name = self.names.of(&identity.name, "pod");
        identity.uid = self.id(&identity.uid);
        for (key, value) in &mut identity.labels {
            *key = self.names.of(key, "label");
            *value = self.names.of(value, "value");
        }
        identity.labels.sort();
    }

    /// A namespace; those that every cluster has stay as they are.
    fn namespace(&mut self, name: &str) -> String {
        match name {
            "default" | "kube-system" | "kube-public" | "kube-node-lease" => name.to_owned(),
            _ => self.names.of(name, "namespace"),
        }
    }

    fn netns(&mut self, netns: &mut Netns) {
        self.sandbox(&mut netns.sandbox);
        netns.path = self.text(&netns.path);
    }

    fn sandbox(&mut self, sandbox: &mut SandboxId) {
        sandbox.0 = self.id(&sandbox.0);
    }

    /// An id: hexadecimal or a UUID, else a name of its own.
    fn id(&mut self, id: &str) -> String {
        if self.ids.is_id(id) {
            self.ids.in_text(id)
        } else {
            self.names.of(id, "id")
        }
    }

    /// Ends, questions and answered addresses of a DNS message.
    fn dns(&mut self, message: &mut DnsMessage) {
        self.ends([&mut message.client, &mut message.server]);
        for question in &mut message.questions {
            question.name = self.dns_name(&question.name).into();
        }
        if let Some(Answer { addresses, .. }) = &mut message.answer {
            for address in addresses {
                *address = self.addresses.of(*address);
            }
        }
    }

    fn dns_name(&mut self, name: &str) -> String {
        self.names.dns(name)
    }

    fn ends(&mut self, ends: [&mut SocketAddr; 2]) {
        for end in ends {
            end.set_ip(self.addresses.of(end.ip()));
        }
    }

    /// Ids, messages and fields of a Windows activity; jobs, operations and compartments are plain numbers of the node.
    fn activity(&mut self, step: &mut ActivityStep) {
        step.activity = self.id(&step.activity);
        step.related = self.id(&step.related);
        match &mut step.step {
            ActivityChange::Started => {}
            ActivityChange::Stopped { message, .. } | ActivityChange::Noted { message, .. } => {
                *message = self.text(message);
            }
        }
        for key in &mut step.keys {
            match key {
                ObjectKey::Namespace(id)
                | ObjectKey::Endpoint(id)
                | ObjectKey::Port(id)
                | ObjectKey::Network(id)
                | ObjectKey::Container(id)
                | ObjectKey::Silo(id) => *id = self.id(id),
                ObjectKey::Job(_) | ObjectKey::Operation(_) | ObjectKey::Compartment(_) => {}
            }
        }
        let fields = step.fields.iter();
        step.fields = fields
            .map(|(name, value)| (name.to_owned(), self.text(value)))
            .collect();
    }

    fn runtime_line(&mut self, line: &mut RuntimeReport) {
        match line {
            RuntimeReport::RunBegan { identity, .. } => self.identity(identity),
            RuntimeReport::RunReturned { identity, sandbox } => {
                self.identity(identity);
                self.sandbox(sandbox);
            }
            RuntimeReport::RunFailed { identity, message } => {
                self.identity(identity);
                *message = self.text(message);
            }
            RuntimeReport::StopBegan { sandbox } | RuntimeReport::ShimLaunched { sandbox, .. } => self.sandbox(sandbox),
            RuntimeReport::StopReturned { sandbox, message } => {
                self.sandbox(sandbox);
                *message = self.text(message);
            }
            RuntimeReport::ContainerOf { sandbox, container } => {
                self.sandbox(sandbox);
                *container = self.id(container);
            }
            RuntimeReport::NamespaceOf { sandbox, namespace } => {
                self.sandbox(sandbox);
                *namespace = self.id(namespace);
            }
            RuntimeReport::EndpointOf { namespace, endpoint } => {
                *namespace = self.id(namespace);
                *endpoint = self.id(endpoint);
            }
            RuntimeReport::Span(span) => {
                span.trace = self.id(&span.trace);
                span.span = self.id(&span.span);
                span.container = self.id(&span.container);
                span.message = self.text(&span.message);
            }
        }
    }

    fn lookup(&mut self, step: &mut LookupStep) {
        step.silo = self.id(&step.silo);
        step.name = self.dns_name(&step.name);
        match &mut step.step {
            LookupChange::Returned { addresses, .. } | LookupChange::Finished { addresses, .. } => {
                for address in addresses {
                    *address = self.addresses.of(*address);
                }
            }
            LookupChange::Sent { server }
            | LookupChange::Answered { server, .. }
            | LookupChange::TimedOut { server } => {
                *server = self.addresses.in_text(server);
            }
            LookupChange::Called | LookupChange::Started => {}
        }
    }

    /// Ids, addresses, known names and home directories in a text.
    fn text(&mut self, text: &str) -> String {
        let text = self.names.in_text(text);
        let text = names::without_home(&text);
        let text = self.ids.in_text(&text);
        self.addresses.in_text(&text)
    }
}

/// Substitutes of addresses: 10.0.0.0/8 and 2001:db8::/32 (RFC 3849). Addresses of one /24 or /64 share one there.
#[derive(Debug, Default)]
struct Addresses {
    /// Number of each network, in the order of their appearance. An IPv4 network has bit 127 set.
    networks: BTreeMap<u128, u32>,
    /// Number of each IPv6 address: its lower half may be made from a device's hardware address (RFC 4291, appendix A).
    hosts: BTreeMap<u128, u64>,
}

impl Addresses {
    /// The substitute. Addresses that mean the same on every node, such as loopback and multicast, stay. The last byte of an
    /// IPv4 address stays too, so that a recording remains readable.
    fn of(&mut self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(v4) if v4.is_loopback() || v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast() => {
                address
            }
            IpAddr::V4(v4) => {
                let bits = u32::from(v4);
                let network = self.network(u128::from(bits >> 8) | 1 << 127);
                IpAddr::V4((10 << 24 | (network & 0xffff) << 8 | bits & 0xff).into())
            }
            IpAddr::V6(v6) if v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() => address,
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) => match self.of(IpAddr::V4(v4)) {
                    IpAddr::V4(v4) => IpAddr::V6(v4.to_ipv6_mapped()),
                    IpAddr::V6(v6) => IpAddr::V6(v6),
                },
                None => {
                    let bits = u128::from(v6);
                    let network = u128::from(self.network(bits >> 64));
                    let next = self.hosts.len() as u64 + 1;
                    let host = u128::from(*self.hosts.entry(bits).or_insert(next));
                    IpAddr::V6((0x2001_0db8_u128 << 96 | network << 64 | host).into())
                }
            },
        }
    }

    /// The substitute of an interface's own address. A link-local one (fe80::/10) remains one, since it means something else.
    fn of_interface(&mut self, address: Ipv6Addr) -> Ipv6Addr {
        match self.of(address.into()) {
            IpAddr::V6(substitute) if address.is_unicast_link_local() => {
                (0xfe80_u128 << 112 | u128::from(substitute) & u128::from(u64::MAX)).into()
            }
            IpAddr::V6(substitute) => substitute,
            IpAddr::V4(_) => address,
        }
    }

    /// The number of a network, from 1.
    fn network(&mut self, key: u128) -> u32 {
        let next = u32::try_from(self.networks.len()).unwrap_or(u32::MAX) + 1;
        *self.networks.entry(key).or_insert(next)
    }

    /// Replaces every address in a text; what stands around it stays.
    fn in_text(&mut self, text: &str) -> String {
        let is_part = |character: char| character.is_ascii_hexdigit() || matches!(character, '.' | ':');
        names::replace_words(text, is_part, |word| {
            // `10.0.0.1:80`, `10.0.0.1.`, `[fd00::1]:80`.
            let candidates = [Some(word), word.rsplit_once(':').map(|(address, _)| address)];
            candidates.into_iter().flatten().find_map(|candidate| {
                let candidate = candidate.trim_end_matches(['.', ':']);
                let address: IpAddr = candidate.parse().ok()?;
                Some(format!("{}{}", self.of(address), &word[candidate.len()..]))
            })
        })
    }
}

#[cfg(test)]
mod tests;
