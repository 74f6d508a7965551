// E2B's command-line client against the server in E2B_API_URL.

import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
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

test('a terminal', async () => {
  const id = await create()
  // `script` is the terminal that the command-line client needs.
  const command = `stty cols 80 rows 24; exec node_modules/.bin/e2b sandbox connect ${id}`
  const input = 'echo "$((6 * 7)) $(whoami)"\nexit\n'
  const done = spawnSync('script', ['-qec', command, '/dev/null'], { input, encoding: 'utf8', timeout: 60_000 })
  assert.match(done.stdout, /42 user/)
  assert.match(e2b(['sandbox', 'kill', id]).all, /killed/)
})

test('templates', () => {
  const dir = mkdtempSync(join(tmpdir(), 'e2b-cli-'))
  try {
    writeFileSync(join(dir, 'e2b.Dockerfile'), 'FROM host\nRUN echo made > made.txt\n')
    const made = e2b(['template', 'create', 'cli-made', '--path', dir, '--dockerfile', 'e2b.Dockerfile'])
    assert.equal(made.code, 0, made.all)
    assert.match(e2b(['template', 'list']).all, /cli-made/)
    assert.match(e2b(['template', 'publish', 'cli-made', '--yes']).all, /Published/)
    assert.equal(e2b(['template', 'delete', 'cli-made', '--yes']).code, 0)
    assert.doesNotMatch(e2b(['template', 'list']).all, /cli-made/)
  } finally {
    rmSync(dir, { recursive: true })
  }
})
