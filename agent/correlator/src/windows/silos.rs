//! Silos: which sandbox one is of, and the callbacks of drivers for it.
//!
//! A silo is the kernel's container (`PsCreateServerSilo`); its events come from the kernel's silo monitor.

use sandglass_model::Timestamp;
use sandglass_model::windows::{ActivityChange, ActivityStep, ObjectKey, Service, SiloChange, SiloStep};

use crate::context::Context;
use crate::windows::Windows;
use crate::windows::stage::Stage;

impl Windows {
    pub(crate) fn on_silo(&mut self, ctx: &mut Context, at: Timestamp, step: &SiloStep) {
        let keys = [ObjectKey::Silo(step.silo.clone()), ObjectKey::Job(step.job)];
        if step.step == SiloChange::Terminated {
            return;
        }
        self.objects.join_keys(ctx, at, &keys);
        if self.objects.keys.owner_of(&keys).is_none() && step.step == SiloChange::Started {
            // A silo is made for a container. The only sandbox that waits for its own is likely meant.
            let waits = self
                .objects
                .sandboxes
                .in_stage(Stage::Creating)
                .filter(|(_, sandbox)| sandbox.called);
            let waits: Vec<u64> = waits.map(|(number, _)| number).collect();
            if let [number] = waits[..] {
                self.objects.learn(ctx, at, number, keys[0].clone());
                self.objects.learn(ctx, at, number, keys[1].clone());
            }
        }
        self.silo_callback(ctx, at, step);
    }

    /// A driver was told of a silo, or is done with it: an activity of the silo's.
    pub(crate) fn silo_callback(&mut self, ctx: &mut Context, at: Timestamp, step: &SiloStep) {
        let (monitor, change) = match &step.step {
            SiloChange::CallbackStarted { monitor } => (monitor, ActivityChange::Started),
            SiloChange::CallbackStopped { monitor, status } => {
                let (result, message) = (Some(*status), String::new());
                (monitor, ActivityChange::Stopped { result, message })
            }
            SiloChange::Started | SiloChange::State(_) | SiloChange::Terminated => return,
        };
        let name = if monitor.is_empty() {
            "callback"
        } else {
            monitor.as_str()
        };
        self.on_activity(
            ctx,
            at,
            ActivityStep {
                service: Service::Silo,
                name: format!("callback {name}"),
                activity: step.silo.clone(),
                related: String::new(),
                pid: 0,
                tid: 0,
                step: change,
                keys: vec![ObjectKey::Silo(step.silo.clone()), ObjectKey::Job(step.job)],
                fields: Default::default(),
            },
        );
    }
}
