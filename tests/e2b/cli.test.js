// E2B's command line over the server in E2B_API_URL.

import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { test } from 'node:test'

function e2b(args, input = '') {
  const done = spawnSync('node_modules/.bin/e2b', args, { input, encoding: 'utf8', timeout: 60_000 })
  return { code: done.status, out: done.stdout, all: done.stdout + done.stderr }
}

async function create() {
  const headers = { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json' }
  const body = JSON.stringify({ templateID: 'base', timeout: 300 })
  const made = await fetch(`${process.env.E2B_API_URL}/sandboxes`, { method: 'POST', headers, body })
  return (await made.json()).sandboxID
}

test('the life of a sandbox', async () => {
  const id = await create()
  assert.match(e2b(['sandbox', 'list']).all, new RegExp(id))
  assert.match(e2b(['sandbox', 'info', id]).all, /running/)
  assert.equal(e2b(['sandbox', 'exec', id, '--', 'echo', 'hello']).out, 'hello\n')
  assert.equal(e2b(['sandbox', 'exec', id, '--', 'cat'], 'piped').out, 'piped')
  assert.equal(e2b(['sandbox', 'exec', id, '--', 'sh', '-c', 'exit 5']).code, 5)
  assert.match(e2b(['sandbox', 'logs', id]).all, /process started/)
  assert.match(e2b(['sandbox', 'metrics', id]).all, /CPU/)
  assert.match(e2b(['sandbox', 'pause', id]).all, /paused/)
  assert.match(e2b(['sandbox', 'resume', id]).all, /resumed/)
  assert.match(e2b(['sandbox', 'kill', id]).all, /killed/)
  assert.equal(e2b(['template', 'list']).code, 0)
})
