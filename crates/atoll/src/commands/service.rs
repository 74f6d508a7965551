//! Services: `atoll service …`

use atoll_api::{CreateService, Service};
use atoll_client::{Client, OutputQuery};
use atoll_core::build::CommandText;
use atoll_core::limits::WAIT_MAX_MS;
use atoll_core::service::ServiceState;
use atoll_core::{Code, Error};

use crate::cli::{AddServiceArgs, ServiceArg, ServiceCommand};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, clean, table, until};

/// Characters of a command that a table shows.
const COMMAND_CHARS: usize = 60;

/// `atoll service …`
pub(super) async fn service(client: &Client, printer: Printer, command: ServiceCommand) -> Result<()> {
    match command {
        ServiceCommand::Add(args) => add(client, printer, *args).await,
        ServiceCommand::Ls { sandbox } => {
            let list = client.list_services(&sandbox).await?;
            let header = ["NAME", "STATE", "RUN", "EXEC", "NEXT", "AGE", "COMMAND"];
            printer.result(&list, || table(header, list.items.iter().map(row)))
        }
        ServiceCommand::Show(ServiceArg { sandbox, service }) => {
            printer.document(&client.get_service(&sandbox, &service, 0).await?)
        }
        ServiceCommand::Logs { follow, offset, service } => {
            logs(client, printer, &service, offset, follow).await
        }
        ServiceCommand::Restart(ServiceArg { sandbox, service }) => {
            let service = client.restart_service(&sandbox, &service).await?;
            printer.result(&service, String::new)
        }
        ServiceCommand::Stop(ServiceArg { sandbox, service }) => {
            let service = client.stop_service(&sandbox, &service).await?;
            printer.result(&service, String::new)
        }
        ServiceCommand::Rm { sandbox, services } => {
            for service in &services {
                client.delete_service(&sandbox, service).await?;
            }
            printer.removed(&services)
        }
    }
}

async fn add(client: &Client, printer: Printer, args: AddServiceArgs) -> Result<()> {
    let (ready, health) = (args.ready(), args.health());
    let create = CreateService {
        name: args.name,
        argv: Some(args.argv),
        env: args.env.into_iter().collect(),
        cwd: args.workdir,
        user: args.user,
        restart: Some(args.restart),
        backoff_ms: args.backoff,
        backoff_max_ms: args.backoff_max,
        give_up_after: args.give_up_after,
        stop_timeout_ms: args.stop_timeout,
        ready,
        health,
        after: args.after,
        ..CreateService::default()
    };
    let mut service = client.create_service(&args.sandbox, &create).await?;
    if args.wait {
        while !service.state.is_settled() {
            service = client.get_service(&args.sandbox, &service.name, WAIT_MAX_MS).await?;
        }
        if service.state == ServiceState::Failed {
            let why = service.reason.unwrap_or_else(|| "it failed".to_owned());
            let error = Error::new(Code::StartFailed, format!("the service '{}': {why}", service.name));
            let hint = format!("see what it wrote: atoll service logs {} {}", args.sandbox, service.name);
            return Err(Failure::Plain(error.hint(hint)));
        }
    }
    printer.result(&service, || service.name.clone())
}

fn row(service: &Service) -> [String; 7] {
    let command = match &service.command {
        CommandText::Shell(line) => line.clone(),
        CommandText::Argv(argv) => argv.join(" "),
    };
    [
        service.name.clone(),
        service.state.as_str().replace('_', " "),
        service.run.to_string(),
        service.exec.clone().unwrap_or_default(),
        service.next_start_at_ms.map(|at| until(Some(at))).unwrap_or_default(),
        age(service.created_at_ms),
        clean(&command).chars().take(COMMAND_CHARS).collect(),
    ]
}

/// Prints the log from an offset on; goes on for ever if asked.
async fn logs(
    client: &Client,
    printer: Printer,
    service: &ServiceArg,
    mut offset: u64,
    follow: bool,
) -> Result<()> {
    let ServiceArg { sandbox, service } = service;
    loop {
        let wait_ms = if follow { WAIT_MAX_MS } else { 0 };
        let query = OutputQuery { offset, wait_ms, ..OutputQuery::default() };
        let page = client.service_log(sandbox, service, query).await?;
        if page.gap_until.is_some() {
            printer.warn("what was written before is not kept any more");
        }
        for chunk in &page.chunks {
            if printer.is_json() {
                printer.stream_item(chunk)?;
            } else {
                printer.exec_output(chunk.stream, chunk.bytes().map_err(Failure::Plain)?.into()).await?;
            }
        }
        if page.next_offset == offset && !follow {
            return Ok(());
        }
        offset = page.next_offset;
    }
}
