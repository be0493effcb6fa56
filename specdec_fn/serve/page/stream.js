// Server-sent events out of the pieces that a socket hands over, and the requests to this server.

export class Failure extends Error {
  constructor(message, status, param) {
    super(message);
    Object.assign(this, { status, param });
  }
}

// Events of a stream: feed it bytes cut anywhere, even within a character or a line end, and it gives the data of each event that is whole.
export function events() {
  const decoder = new TextDecoder();
  let rest = '', lines = [], skip = false;
  return {
    feed(bytes) {
      rest += decoder.decode(bytes, { stream: true });
      const found = [];
      for (;;) {
        if (skip && rest) {
          skip = false;
          if (rest[0] === '\n') rest = rest.slice(1);
        }
        const end = rest.search(/[\r\n]/);
        if (end < 0) return found;
        const line = rest.slice(0, end);
        skip = rest[end] === '\r'; // the line feed that belongs to it may come with the next bytes
        rest = rest.slice(end + 1);
        if (line.startsWith('data:')) lines.push(line.slice(line[5] === ' ' ? 6 : 5));
        else if (!line && lines.length) {
          found.push(lines.join('\n'));
          lines = [];
        }
      }
    },
  };
}

export async function* chunks(path, body, { key, signal } = {}) {
  const response = await ask(path, { method: 'POST', body: JSON.stringify(body), signal }, key);
  const reader = response.body.getReader(), parser = events();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Failure('the stream broke off before its end; the server may have stopped', 0);
    for (const data of parser.feed(value)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Failure(chunk.error.message, 0, chunk.error.param);
      yield chunk;
    }
  }
}

export async function ask(path, init = {}, key = '') {
  const headers = { 'content-type': 'application/json' };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...init, headers });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Failure('the server does not answer; is it still running?', 0);
  }
  if (response.ok) return response;
  let error = {};
  try {
    ({ error = {} } = await response.json());
  } catch { /* not from our server: the status has to do */ }
  const wait = response.headers.get('retry-after');
  const message = error.message ?? `the server answers ${response.status} ${response.statusText}`;
  throw new Failure(wait ? `${message} (in about ${wait} s)` : message, response.status, error.param);
}
