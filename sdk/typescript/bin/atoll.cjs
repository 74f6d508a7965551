#!/usr/bin/env node
// The command `atoll`: becomes the program of the package for this platform, or runs it and passes signals on.
"use strict";
const { spawn } = require("node:child_process");
const { constants } = require("node:os");
const { bundled, platformPackage } = require("../dist/cjs/program.cjs");

const program = bundled();
if (!program) {
  console.error(`atoll: ${platformPackage()} is not installed: there is a program for Linux only; was it left out with --omit=optional?`);
  process.exit(125);
}
const args = process.argv.slice(2);
if (typeof process.execve === "function") process.execve(program, [program, ...args], process.env);
const child = spawn(program, args, { stdio: "inherit" });
for (const signal of ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`atoll: ${error.message}`);
  process.exit(125);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
