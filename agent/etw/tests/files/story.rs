//! A synthetic pod start: what containerd, HNS, DNS, WinNAT, TCPIP and the kernel logger would say, in short.

use sandglass_etw::event::Value;
use sandglass_etw::writer::{EtlWriter, Failure, Record, Session};
use sandglass_etw::{Guid, RawRecord, Tables};

use crate::TABLES;

pub const HNS: Guid = Guid::literal("0c885e0d-6eb6-476c-a048-2457eed3a5c1");
pub const CONTAINERD: Guid = Guid::literal("2acb92c0-eb9b-571a-69cf-8f3410f383ad");
pub const REQUEST: Guid = Guid::literal("11111111-0000-0000-0000-000000000001");
pub const ENDPOINT: Guid = Guid::literal("22222222-0000-0000-0000-000000000002");
pub const SILO: Guid = Guid::literal("33333333-0000-0000-0000-000000000003");
pub const START: u64 = 1_760_000_000_000_000_000;
const MS: u64 = 1_000_000;

/// The records, each on a processor of its own choice, in time order.
pub fn records(tables: &Tables) -> Vec<RawRecord> {
    let at = |ms: u64| START + ms * MS;
    let hns = |name| {
        Record::tracelogging(HNS, "Microsoft.Windows.HNS", name)
            .process_id(2000)
            .level(5)
    };
    let manifest = |provider, id, version| Record::manifest(tables, provider, id, version).unwrap();
    vec![
        Record::tracelogging(CONTAINERD, "ContainerD", "LogrusEntry")
            .text(
                "Message",
                "RunPodSandbox for &PodSandboxMetadata{Name:web-0,Namespace:shop,}",
            )
            .process_id(1000)
            .at(at(1))
            .build(),
        Record::process(tables, 1, 4242, 1000, "sdnbridge.exe", r"C:\cni\sdnbridge.exe")
            .unwrap()
            .at(at(2))
            .cpu(1)
            .build(),
        hns("RequestHandler")
            .ansi("method", "POST")
            .thread_id(7)
            .activity(REQUEST)
            .at(at(3))
            .cpu(2)
            .wil_start()
            .build(),
        hns("EndpointActivity")
            .guid("endpointId", ENDPOINT)
            .thread_id(7)
            .activity(ENDPOINT)
            .related(REQUEST)
            .at(at(4))
            .cpu(2)
            .wil_start()
            .build(),
        hns("EndpointActivity")
            .thread_id(7)
            .activity(ENDPOINT)
            .at(at(40))
            .cpu(3)
            .wil_stop(0)
            .build(),
        hns("EndpointAttachShared")
            .thread_id(8)
            .activity(ENDPOINT)
            .at(at(41))
            .wil_start()
            .build(),
        hns("EndpointAttachShared")
            .thread_id(8)
            .activity(ENDPOINT)
            .at(at(45))
            .cpu(1)
            .wil_failed(failure())
            .build(),
        hns("RequestHandler")
            .thread_id(7)
            .activity(REQUEST)
            .at(at(46))
            .wil_stop(0)
            .build(),
        Record::process(tables, 2, 4242, 1000, "sdnbridge.exe", r"C:\cni\sdnbridge.exe")
            .unwrap()
            .at(at(50))
            .build(),
        manifest("Microsoft-Windows-Kernel-Process", 13, 0)
            .guid("ContainerID", SILO)
            .u32("JobID", 9)
            .at(at(60))
            .build(),
        manifest("Microsoft-Windows-DNS-Client", 3006, 0)
            .text("QueryName", "kubernetes.default.svc.cluster.local")
            .u32("QueryType", 1)
            .process_id(6000)
            .container(SILO)
            .start_key(77)
            .at(at(70))
            .cpu(1)
            .build(),
        manifest("Microsoft-Windows-DNS-Client", 3008, 0)
            .text("QueryName", "kubernetes.default.svc.cluster.local")
            .u32("QueryType", 1)
            .u32("QueryStatus", 9003)
            .process_id(6000)
            .container(SILO)
            .at(at(80))
            .build(),
        manifest("Microsoft-Windows-WinNat", 1001, 1)
            .value(
                "InternalSrcAddr",
                Value::SocketAddr("172.20.1.5:50000".parse().unwrap()),
            )
            .value("InternalDstAddr", Value::SocketAddr("10.96.0.1:443".parse().unwrap()))
            .value(
                "ExternalSrcAddr",
                Value::SocketAddr("192.168.0.4:1024".parse().unwrap()),
            )
            .value("ExternalDstAddr", Value::SocketAddr("10.96.0.1:443".parse().unwrap()))
            .u32("TransportProtocol", 6)
            .u32("TcpSessionState", 1)
            .u32("InternalCompartmentId", 3)
            .at(at(90))
            .build(),
        manifest("Microsoft-Windows-TCPIP", 1033, 1)
            .value("LocalAddress", Value::SocketAddr("[fd00::5]:50000".parse().unwrap()))
            .value("RemoteAddress", Value::SocketAddr("[fd00::1]:443".parse().unwrap()))
            .u32("ProcessId", 6000)
            .u32("Compartment", 3)
            .u64("Tcb", 0xffff_9000_1234_5678)
            .at(at(95))
            .cpu(3)
            .build(),
        Record::wpp(Guid::ZERO, &[1, 2, 3, 4]).at(at(96)).build(),
    ]
}

pub fn failure() -> Failure<'static> {
    Failure {
        hresult: 0x803b_0017,
        file: r"onecore\vm\dv\net\hns\service\network\endpoint.h",
        line: 512,
        module: "hostnetsvc.dll",
        message: "wrong state ⚠",
        call_context: r"\RequestHandler\EndpointActivity\EndpointAttachShared",
    }
}

/// The story as a file of that session, with schema records or without.
pub fn file(session: Session, schemas: bool) -> Vec<u8> {
    file_of(session, schemas, |_| true)
}

/// As `file`, of those records only.
pub fn file_of(session: Session, schemas: bool, keep: fn(&RawRecord) -> bool) -> Vec<u8> {
    let tables = TABLES.clone();
    let mut writer = EtlWriter::new(session);
    if schemas {
        writer = writer.with_schemas(tables.clone());
    }
    for record in records(&tables).into_iter().filter(keep) {
        writer.push(record);
    }
    writer.finish()
}
